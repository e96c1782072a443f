"""The training run: step, report, evaluate, save."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from tqdm import tqdm

from ..errors import CorpusError, ElmoWarning, Errors, TrainingError, Warnings
from ..lm.config import BiLMConfig
from ..weights.formats import LoadedModel
from ..weights.native import save_bilm, save_head
from .batches import Position
from .beginning import Beginning, begin
from .checkpoint import (
    BEST,
    Checkpoint,
    drop_begin,
    load_begin,
    load_same_checkpoint,
    read_checkpoint,
    save_begin,
    save_best,
    save_checkpoint,
)
from .corpus import BLOCK_LINES, Corpus, Sentence
from .distributed import Workers
from .environment import environment
from .evaluate import Perplexity
from .feeding import read_batches
from .held_out import HeldOut
from .interrupts import StopRequest, interrupts_deferred
from .metrics import Evaluation, Metrics
from .model_card import model_card
from .objective import Batch
from .optimization import learning_rate
from .prefetching import prefetched
from .progress import Progress
from .run_directory import CHECKPOINTS, METRICS_FILE, RunLock
from .settings import TrainingSettings
from .trackers import build_trackers, check_trackers
from .vocabulary import Vocabulary

REPORT_EVERY = 20
"""Steps between reports. Only then what was measured is read from the device."""

_SLOWER = 0.5


class StepOutcome(NamedTuple):
    """What came of a step.

    words (int): Words read by all processes; 0 if nothing was done, for the text of all is at its end.
    rate (float): At which it was learned.
    stops, saves (bool): Whether all have agreed to stop, or to save, after it.
    """

    words: int
    rate: float = 0.0
    stops: bool = False
    saves: bool = False


class Run:
    """A training run and its directory.

    directory (Path): Gets `checkpoints/`, `vocabulary.txt.gz`, `metrics.jsonl` and, at the end, the weights; while the
        run is at work, `run.lock`.
    config (BiLMConfig): The model to train.
    settings (TrainingSettings): How.
    shards (Sequence[Path]): The files of the text, as `corpus.find_shards` finds them.
    held_out (Mapping): Sentences for evaluation, by domain; may be empty.
    device (torch.device): Where to train.
    workers (Workers): The processes of the run; one by default.
    initial (LoadedModel | None): A model to go on with, whose config is `config`.
    vocabulary (Vocabulary | None): The words to predict, in place of the most frequent ones and of those of `initial`.
    trackers (Sequence[str]): Who is told of all that is measured, see `trackers.build_trackers`.

    RAISES (TrainingError): E265 for a tracker that there is none of.
    """

    def __init__(
        self,
        directory: Path,
        config: BiLMConfig,
        settings: TrainingSettings,
        shards: Sequence[Path],
        held_out: Mapping[str, list[Sentence]],
        device: torch.device,
        workers: Workers | None = None,
        initial: LoadedModel | None = None,
        vocabulary: Vocabulary | None = None,
        trackers: Sequence[str] = (),
    ) -> None:
        self.directory, self.config, self.settings = directory, config, settings
        self.corpus = Corpus(list(shards), settings.max_words)
        self.held_out, self.device = HeldOut(held_out), device
        self.initial, self._given = initial, vocabulary
        self.workers = workers or Workers()
        self.checkpoints = directory / CHECKPOINTS
        self.metrics = Metrics(directory / METRICS_FILE)
        self.lock = RunLock(directory)
        self._tracked_by = check_trackers(trackers)
        self._stop = StopRequest()
        self._is_ahead = False

    def begin(self, resume: bool) -> None:
        """Set up vocabulary, weights and optimizer, new or from the newest checkpoint. The directory is locked from
        here to the end of `train`.

        resume (bool): Go on with the run in the directory; without a checkpoint there, begin.
        RAISES (ElmoError): As `beginning.begin`.
        """
        try:
            self._take_over(begin(self, resume))
        except BaseException:
            self.lock.release()
            raise

    def given_vocabulary(self) -> Vocabulary | None:
        """RETURNS (Vocabulary | None): The words to predict, if they need not be counted."""
        if self._given is None and self.initial is not None and self.initial.head is not None:
            return None if self.initial.vocabulary is None else Vocabulary(self.initial.vocabulary)
        return self._given

    def _take_over(self, beginning: Beginning) -> None:
        self.settings, self.vocabulary = beginning.settings, beginning.vocabulary
        self.learner, self.progress = beginning.learner, beginning.progress
        self.identity = beginning.identity
        names = self._tracked_by if self.workers.is_first else ()
        self._trackers = build_trackers(names, self.directory, self.identity, self.progress.step)
        self._is_ahead, self._saved_at = False, time.monotonic()
        self._started = time.monotonic() - self.progress.seconds
        if self.progress.step and self.workers.is_first:
            self.held_out.take_over(self.metrics.cut(self.progress.step, self.progress.measured))

    def train(self) -> None:
        """Train to the end and write the weights. Ctrl-C saves a checkpoint and is raised again.

        RAISES (TrainingError): E214 if the loss or a weight is not finite and no earlier weights help, E210, E215 if a
            file cannot be written, E271 if the text is too short for streams.
        """
        try:
            # Several processes stop at the same step only if none stops by itself.
            with self._stop.heeded(self.workers.world > 1):
                try:
                    self._train_epochs()
                    self._save_if_ahead()
                    if not self._is_evaluated():
                        self.evaluate()
                        self._save_if_ahead()
                    self.save_weights()
                except KeyboardInterrupt:
                    # torchrun asks a second time, and who is impatient, too; the checkpoint is written all the same.
                    with self._stop.heeded(True):
                        self._save_if_ahead()
                    raise
        finally:
            self._trackers.close()
            self.lock.release()

    def evaluate(self) -> Perplexity | None:
        """RETURNS (Perplexity | None): On the held-out text, in float32, logged; None if there is none."""
        if not self.held_out.domains:
            return None
        found = self.held_out.measure(self.learner, self.vocabulary, self.workers, self._stop)
        for one in found.values():
            if not math.isfinite(one.joint):
                self._give_up("the held-out perplexity", one.joint)
        with interrupts_deferred():
            evaluation = self.held_out.note(self.progress.step, found)
            self._record(**evaluation.values(self.progress.words, found if len(found) > 1 else {}))
            self._is_ahead = True
            self._learn_from(evaluation)
        together = evaluation.perplexity
        self._tell(f"held-out perplexity: forward {together.forward:.2f}  backward {together.backward:.2f}")
        return together

    def save_checkpoint(self) -> None:
        """Write all that is needed to go on.

        RAISES (TrainingError): E210 if it cannot be written, E214 if weights are not finite, E276 if they are not the same
            in all processes; earlier ones are kept.
        """
        if not self.learner.is_finite():
            self._give_up("a weight", "not finite")
        if self.workers.world > 1 and not self.workers.agree(self.learner.fingerprint()):
            raise TrainingError(Errors.E276.format(step=self.progress.step))
        parts = self.learner.tensors()
        self.progress.seconds = time.monotonic() - self._started
        with interrupts_deferred():
            if self.workers.is_first:
                self.progress.measured = self.metrics.lines
                checkpoint = Checkpoint.of_parts(parts, {**self.identity, **self.progress.to_dict()})
                step, every = self.progress.step, self.settings.save_every
                good = self._good_step()
                may_be_good = good, step // every * every  # the one of now, and the one that may come to be it
                save_checkpoint(self.checkpoints, step, checkpoint, self.settings.keep, may_be_good)
                if good:
                    drop_begin(self.checkpoints)
            self.workers.of_first(None)  # nobody leaves before it is written
            self._is_ahead, self._saved_at = False, time.monotonic()

    def save_weights(self) -> None:
        """Write the weights directory, with the weights of the best evaluation: config, weights, softmax, model card;
        the vocabulary is there already.

        RAISES (TrainingError): E215 if a file cannot be written.
        """
        if not self.workers.is_first:
            return
        self._take_best()
        progress, size = self.progress, len(self.vocabulary)
        settings = self.identity["settings"] | self.identity["chosen"]
        found = self.held_out.at(progress.step)
        begun_from, before = self.identity["begun_from"], self._perplexity_before()
        card = model_card(self.config, settings, progress.step, progress.words, size, found, begun_from, before)
        try:
            save_head(self.learner.head, self.directory)
            save_bilm(self.learner.bilm, self.directory, model_card=card)
        except OSError as error:
            raise TrainingError(Errors.E215.format(path=self.directory, detail=error)) from error

    def _perplexity_before(self) -> Perplexity | None:
        """RETURNS (Perplexity | None): That of the model that the run began with, on the same text as the last one."""
        first, last = self.metrics.evaluation_at(0), self.held_out.last
        return first.perplexity if first is not None and last is not None and first.held_out == last.held_out else None

    def _train_epochs(self) -> None:
        progress, epochs = self.progress, self.settings.epochs
        if not progress.step and self.workers.is_first:
            begun = {**self.identity, **progress.to_dict()}
            save_begin(self.checkpoints, Checkpoint.of_parts(self.learner.weights(), begun))
        elif self.workers.is_first and progress.position.epoch < epochs:
            self.metrics.append_environment(progress.step, environment(self.device, self.workers.world))
        over = self._evaluate_if_due()
        total, hidden = progress.words_an_epoch * epochs, not self.workers.is_first
        with tqdm(
            total=total, initial=progress.words, unit="w", unit_scale=True, smoothing=0.05, disable=hidden
        ) as bar:
            while progress.position.epoch < epochs and not over:
                over = self._train_epoch(bar)

    def _train_epoch(self, bar: tqdm[Any]) -> bool:
        """RETURNS (bool): Whether training is over before all epochs are."""
        epoch, done = self.progress.position
        parts = self.workers.parts(self.settings.parts)
        feed = read_batches(self.corpus, self.settings, self.vocabulary, parts, epoch, done)
        with prefetched(feed) as batches:
            for step in count(done + 1):
                found = next(batches, {})
                # Weights, position and what is reported of them change together or not at all.
                with interrupts_deferred():
                    outcome = self._train_step(Position(epoch, step), found)
                    if outcome.words and self.progress.step % REPORT_EVERY == 0:
                        self._report(bar, outcome.rate)
                if not outcome.words:
                    break
                bar.update(outcome.words)
                if outcome.stops:
                    raise KeyboardInterrupt
                # What a checkpoint holds includes what was learned from the evaluation of its step.
                over = self._evaluate_if_due()
                if self.progress.step % self.settings.save_every == 0 or outcome.saves:
                    self.save_checkpoint()
                if over:
                    return True
            if step == 1:
                self._refuse_text()
        self.progress.position = Position(epoch + 1)
        return False

    def _train_step(self, position: Position, batches: dict[int, Batch]) -> StepOutcome:
        progress, settings = self.progress, self.settings
        minutes = (time.monotonic() - self._saved_at) / 60
        due = self.workers.is_first and 0 < settings.save_minutes <= minutes
        counts = sum(batch.n_words for batch in batches.values()), sum(batch.places for batch in batches.values())
        words, places, there, stop, saves = self.workers.sum(*counts, len(batches), self._stop.requested, due)
        if not places:
            return StepOutcome(0)
        if not progress.step and there < settings.parts and self.workers.is_first:
            message = Warnings.W222.format(there=there, parts=settings.parts, lines=BLOCK_LINES)
            warnings.warn(message, ElmoWarning, stacklevel=2)
        share = progress.words / max(1, progress.words_an_epoch * settings.epochs)
        rate = learning_rate(share, progress.step, settings) * progress.rate_factor
        self.learner.learn(batches, places, progress.step, rate)
        progress.step += 1
        progress.words += words
        progress.position = position
        self._is_ahead = True
        # Who was asked to stop meanwhile stops with the others after the next step.
        return StepOutcome(max(1, words), rate, bool(stop), bool(saves))

    def _report(self, bar: tqdm[Any], rate: float) -> None:
        progress, window = self.progress, self.learner.window()
        if progress.guard.is_spike(window.loss):
            self._roll_back(window.loss)
            return
        bar.set_postfix(loss=f"{window.loss:.3f}", rate=f"{rate:.2e}", step=progress.step)
        self._record(
            step=progress.step,
            words=progress.words,
            loss=window.loss,
            gradient_norm=window.gradient_norm,
            rate=rate,
            skipped=window.skipped,
            seconds=time.monotonic() - self._started,
        )

    def _record(self, **values: Any) -> None:
        if self.workers.is_first:
            self.metrics.append(**values)
            self._trackers.log(values["step"], values)

    def _roll_back(self, loss: float) -> None:
        """Take the last good weights and go on with the text that comes next, more slowly."""
        progress = self.progress
        if progress.rollbacks >= self.settings.max_rollbacks:
            self._give_up("the loss", loss)
        checkpoint = load_same_checkpoint(self.checkpoints, self.workers, up_to=self._good_step())
        checkpoint = checkpoint or load_begin(self.checkpoints, self.workers)
        if checkpoint is None:
            self._give_up("the loss", loss)
        self.learner.take_back(checkpoint.parts(), str(self.checkpoints))
        progress.guard = Progress.from_dict(checkpoint.progress).guard
        progress.rollbacks += 1
        progress.rolled_back_at = progress.step
        progress.rate_factor *= _SLOWER
        good = checkpoint.progress["step"]
        self._record(step=progress.step, rolled_back_to=good, loss=loss)
        if self.workers.is_first:
            warnings.warn(Warnings.W220.format(step=progress.step, loss=loss, good=good), ElmoWarning, stacklevel=2)
        self.save_checkpoint()

    def _learn_from(self, evaluation: Evaluation) -> None:
        """The best weights are kept; the rate falls where no better ones come."""
        if self.progress.plateau.is_best(evaluation.perplexity.joint, evaluation.step, evaluation.held_out):
            if self.workers.is_first:
                progress = {**self.identity, **self.progress.to_dict()}
                save_best(self.checkpoints, Checkpoint.of_parts(self.learner.weights(), progress))
        else:
            self.progress.rate_factor *= self.settings.plateau_factor

    def _good_step(self) -> int:
        """RETURNS (int): Of the checkpoint that a leap takes the run back to: the last one by steps before the last report,
        where no leap had begun, or that of the last leap. When time or an interruption had one written changes nothing."""
        reported = (self.progress.step - 1) // REPORT_EVERY * REPORT_EVERY
        return max(reported // self.settings.save_every * self.settings.save_every, self.progress.rolled_back_at)

    def _take_best(self) -> None:
        plateau = self.progress.plateau
        if plateau.best is None or plateau.best_step == self.progress.step or not self.held_out.domains:
            return
        path = self.checkpoints / BEST
        best = read_checkpoint(path)
        if best is None or best.progress["step"] != plateau.best_step:
            there = None if best is None else best.progress["step"]
            message = Warnings.W223.format(step=plateau.best_step, path=path, there=there)
            warnings.warn(message, ElmoWarning, stacklevel=2)
            return
        self.learner.restore(best.parts(), str(self.checkpoints / BEST))
        self.progress.step, self.progress.words = best.progress["step"], best.progress["words"]
        self.held_out.last = self.metrics.evaluation_at(self.progress.step)
        self._tell("these weights were the best")

    def _evaluate_if_due(self) -> bool:
        """RETURNS (bool): Whether training is over, since no better perplexity came."""
        if self.progress.step % self.settings.evaluate_every == 0 and not self._is_evaluated():
            self.evaluate()
        return 0 < self.settings.patience <= self.progress.plateau.since

    def _is_evaluated(self) -> bool:
        begins_anew = self.progress.step == 0 and self.initial is None
        step = self.workers.of_first(None if self.held_out.last is None else self.held_out.last.step)
        return begins_anew or step == self.progress.step

    def _save_if_ahead(self) -> None:
        if self._is_ahead and self.progress.step:
            self.save_checkpoint()

    def _refuse_text(self) -> None:
        shards = [str(shard) for shard in self.corpus.shards[:3]]
        if self.settings.objective == "streams":
            streams, unroll = self.settings.streams, self.settings.unroll
            raise CorpusError(Errors.E271.format(shards=shards, streams=streams, unroll=unroll))
        raise CorpusError(Errors.E203.format(shards=shards))

    def _give_up(self, what: str, value: object) -> NoReturn:
        raise TrainingError(Errors.E214.format(what=what, value=value, step=self.progress.step))

    def _tell(self, text: str) -> None:
        if self.workers.is_first:
            tqdm.write(f"step {self.progress.step:,}  {text}")
