"""The training run: begin or go on, step, report, evaluate, save."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..errors import CorpusError, ElmoWarning, Errors, TrainingError, Warnings
from ..lm.bilm import BiLM
from ..lm.config import BiLMConfig
from ..lm.softmax import OutputHead, build_head
from ..weights.native import VOCABULARY_FILE, WEIGHTS_FILE, fill, save_bilm, save_head
from .checkpoint import Checkpoint, find_checkpoints, load_newest_checkpoint, save_checkpoint
from .corpus import Corpus, Position, Sentence, text_checksum
from .evaluate import Perplexity, perplexity
from .interrupts import interrupts_deferred
from .memory import require_memory
from .metrics import Evaluation, Metrics
from .model_card import model_card
from .objective import log_probabilities, prepare_batch
from .optimization import SeededDropout, build_optimizer, learning_rate, optimizer_tensors, restore_optimizer
from .run_directory import CHECKPOINTS, METRICS_FILE, RunLock, make_run_directory
from .settings import FREE_TO_CHANGE, TrainingSettings
from .vocabulary import Vocabulary

_REPORT_EVERY = 20
_LOG_EVERY = 100


class Run:
    """A training run and its directory.

    directory (Path): Gets `checkpoints/`, `vocabulary.txt.gz`, `metrics.jsonl` and, at the end, the weights; while the
        run is at work, `run.lock`.
    config (BiLMConfig): The model to train.
    settings (TrainingSettings): How.
    shards (Sequence[Path]): The files of the text, as `corpus.find_shards` finds them.
    held_out (list): Sentences for evaluation; may be empty.
    device (torch.device): Where to train.
    """

    def __init__(
        self,
        directory: Path,
        config: BiLMConfig,
        settings: TrainingSettings,
        shards: Sequence[Path],
        held_out: list[Sentence],
        device: torch.device,
    ) -> None:
        self.directory, self.config, self.settings = directory, config, settings
        self.corpus = Corpus(list(shards), settings.max_words, settings.buffer_words)
        self.held_out, self.device = held_out, device
        self.checkpoints = directory / CHECKPOINTS
        self.metrics = Metrics(directory / METRICS_FILE)
        self.lock = RunLock(directory)
        self.step, self.words, self.words_an_epoch = 0, 0, 0
        self.position = Position()
        self.last_evaluation: Evaluation | None = None
        self._saved_at = 0

    def begin(self, resume: bool) -> None:
        """Set up vocabulary, weights and optimizer, new or from the newest checkpoint. The directory is locked from
        here to the end of `train`.

        resume (bool): Go on with the run in the directory; without a checkpoint there, begin.
        RAISES (TrainingError): E212 if the directory holds a run and `resume` is false, E213 if that run has other
            settings or another corpus, E211 if no checkpoint can be read, E215, E217, E218 if the directory cannot be
            written or is none for a run, E219 if another run is at work in it, E220 if the biLM is too large to train,
            E222 if it is not one over characters.
        RAISES (CorpusError): E201, E202 if the corpus cannot be read, E203 if it is empty.
        """
        if self.config.token_encoder != "characters":
            raise TrainingError(Errors.E222.format(encoder=self.config.token_encoder))
        make_run_directory(self.directory, self.corpus.shards)
        self.lock.acquire()
        try:
            self._set_up(resume)
        except BaseException:
            self.lock.release()
            raise

    def _set_up(self, resume: bool) -> None:
        begun = bool(find_checkpoints(self.checkpoints))
        # Weights without checkpoints are a finished model that no run may replace, resumed or not.
        if (begun and not resume) or (not begun and (self.directory / WEIGHTS_FILE).exists()):
            raise TrainingError(Errors.E212.format(directory=self.directory))
        require_memory(self.config, self.device)
        checkpoint = load_newest_checkpoint(self.checkpoints)
        # Once, not with each checkpoint: it reads the whole corpus, and says what was there when the run began.
        self._corpus_identity = self.corpus.identity()
        if checkpoint is not None:
            self._check_same_run(checkpoint.progress)
        self.vocabulary = self._vocabulary(fresh=checkpoint is None)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.settings.seed)
            bilm = BiLM(self.config)
            head = build_head(self.settings.head_settings(self.config.projection, len(self.vocabulary)))
        self.bilm: BiLM = bilm.to(self.device)
        self.head: OutputHead = head.to(self.device)
        self.parameters = [*self.bilm.parameters(), *self.head.parameters()]
        self.optimizer = build_optimizer(self.parameters, self.settings.weight_decay)
        self.generator = torch.Generator(self.device).manual_seed(self.settings.seed)
        self._started = time.monotonic()
        if checkpoint is not None:
            self._restore(checkpoint)

    def train(self) -> None:
        """Train to the end and write the weights. Ctrl-C saves a checkpoint and is raised again.

        RAISES (TrainingError): E214 if loss or weights are not finite, E210, E215 if a file cannot be written.
        """
        settings = self.settings
        batches = self.corpus.batches(settings.batch_words, settings.seed, settings.epochs, self.position)
        total = self.words_an_epoch * settings.epochs
        try:
            self._evaluate_if_due()
            with tqdm(total=total, initial=self.words, unit="w", unit_scale=True, smoothing=0.05) as bar:
                for position, sentences in batches:
                    with interrupts_deferred():
                        loss, rate = self._train_step(sentences)
                        self.position = position
                    bar.update(sum(map(len, sentences)))
                    self._report(bar, loss, rate)
                    if self.step % settings.save_every == 0:
                        self.save_checkpoint()
                    self._evaluate_if_due()
            self._save_if_ahead()
            if not self._is_evaluated():
                self.evaluate()
            self.save_weights()
        except KeyboardInterrupt:
            self._save_if_ahead()
            raise
        finally:
            self.lock.release()

    def evaluate(self) -> Perplexity | None:
        """RETURNS (Perplexity | None): On the held-out text, in float32, logged; None if there is none."""
        if not self.held_out:
            return None
        found = perplexity(self.bilm, self.head, self.vocabulary, self.held_out)
        self._require_finite(found.joint, "the held-out perplexity")
        evaluation = Evaluation(self.step, text_checksum(self.held_out), found)
        with interrupts_deferred():
            self.metrics.append_evaluation(self.words, evaluation)
            self.last_evaluation = evaluation
        both = f"forward {found.forward:.2f}  backward {found.backward:.2f}"
        tqdm.write(f"step {self.step:,}  held-out perplexity: {both}")
        return found

    def save_checkpoint(self) -> None:
        """Write all that is needed to go on.

        RAISES (TrainingError): E210 if it cannot be written, E214 if weights are not finite; earlier ones are kept.
        """
        parts = {
            "bilm": self.bilm.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer),
            "random": {"generator": self.generator.get_state()},
        }
        finite = torch.stack([parameter.detach().isfinite().all() for parameter in self.parameters])
        if not finite.all():
            raise TrainingError(Errors.E214.format(what="a weight", value="not finite", step=self.step))
        tensors = {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        progress = {**self._identity(), "step": self.step, "words": self.words, "position": list(self.position)}
        progress["seconds"] = self._seconds()
        with interrupts_deferred():
            save_checkpoint(self.checkpoints, self.step, Checkpoint(tensors, progress))
            self._saved_at = self.step

    def save_weights(self) -> None:
        """Write the weights directory: config, weights, softmax, model card; the vocabulary is there already.

        RAISES (TrainingError): E215 if a file cannot be written.
        """
        settings, size = asdict(self.settings), len(self.vocabulary)
        # An evaluation of earlier weights says nothing of these.
        last = self.last_evaluation
        found = last.perplexity if last is not None and last.step == self.step else None
        card = model_card(self.config, settings, self.step, self.words, size, found)
        try:
            save_head(self.head, self.directory)
            save_bilm(self.bilm, self.directory, model_card=card)
        except OSError as error:
            raise TrainingError(Errors.E215.format(path=self.directory, detail=error)) from error

    def _train_step(self, sentences: list[Sentence]) -> tuple[Tensor, float]:
        settings = self.settings
        done = self.words / max(1, self.words_an_epoch * settings.epochs)
        rate = learning_rate(done, self.step, settings.peak_rate, settings.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = prepare_batch(sentences, self.vocabulary, self.device)
        dropout = SeededDropout(settings.dropout, self.generator) if settings.dropout else None
        with self._precision():
            loss = -log_probabilities(self.bilm, self.head, batch, dropout).mean()
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.parameters, settings.max_gradient_norm)
        self.optimizer.step()
        self.step += 1
        self.words += sum(map(len, sentences))
        return loss.detach(), rate

    def _report(self, bar: tqdm[Any], loss: Tensor, rate: float) -> None:
        """Reading the loss waits for the device, so it is done, and the loss checked, every few steps only."""
        if self.step % _REPORT_EVERY:
            return
        value = float(loss)
        self._require_finite(value, "the loss")
        bar.set_postfix(loss=f"{value:.3f}", rate=f"{rate:.2e}", step=self.step)
        if self.step % _LOG_EVERY == 0:
            self.metrics.append(step=self.step, words=self.words, loss=value, rate=rate, seconds=self._seconds())

    def _seconds(self) -> float:
        """Seconds of training, those before the checkpoint that this process went on from included."""
        return time.monotonic() - self._started

    def _require_finite(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise TrainingError(Errors.E214.format(what=what, value=value, step=self.step))

    def _is_evaluated(self) -> bool:
        return self.step == 0 or (self.last_evaluation is not None and self.last_evaluation.step == self.step)

    def _evaluate_if_due(self) -> None:
        if self.step % self.settings.evaluate_every == 0 and not self._is_evaluated():
            self.evaluate()

    def _save_if_ahead(self) -> None:
        if self.step > self._saved_at:
            self.save_checkpoint()

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bfloat16)

    def _vocabulary(self, fresh: bool) -> Vocabulary:
        path = self.directory / VOCABULARY_FILE
        if not fresh:
            return Vocabulary.load(path)
        try:
            self.metrics.path.unlink(missing_ok=True)
            counted = Vocabulary.count(self._counted(), self.settings.vocabulary_size, self.settings.min_count)
            if not self.words_an_epoch:
                raise CorpusError(Errors.E203.format(shards=[str(shard) for shard in self.corpus.shards[:3]]))
            counted.save(path)
        except OSError as error:
            raise TrainingError(Errors.E215.format(path=path, detail=error)) from error
        self.metrics.append(step=0, **asdict(self.corpus.report))
        return counted

    def _counted(self) -> Iterator[Sentence]:
        self.words_an_epoch = 0
        for sentence in tqdm(self.corpus.sentences(), unit=" sentences", unit_scale=True, desc="counting words"):
            self.words_an_epoch += len(sentence)
            yield sentence

    def _identity(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "settings": asdict(self.settings),
            "corpus": self._corpus_identity,
            "words_an_epoch": self.words_an_epoch,
        }

    def _check_same_run(self, progress: dict[str, Any]) -> None:
        here = json.loads(json.dumps(self._identity()))
        changed = {
            f"{part}.{name}": (there.get(name), here[part].get(name))
            for part, there in ((part, progress.get(part, {})) for part in ("config", "settings", "corpus"))
            for name in {**here[part], **there}
            if there.get(name) != here[part].get(name) and not (part == "settings" and name in FREE_TO_CHANGE)
        }
        if changed:
            raise TrainingError(Errors.E213.format(directory=self.directory, changed=changed))

    def _restore(self, checkpoint: Checkpoint) -> None:
        source = str(self.checkpoints)
        fill(self.bilm, checkpoint.part("bilm"), source)
        fill(self.head, checkpoint.part("head"), source)
        restore_optimizer(self.optimizer, checkpoint.part("optimizer"))
        progress = checkpoint.progress
        self.step, self.words, self.words_an_epoch = progress["step"], progress["words"], progress["words_an_epoch"]
        self.position = Position(*progress["position"])
        self._saved_at = self.step
        self._started -= progress["seconds"]
        last = self.metrics.cut(self.step)
        # On other text than before the weights are scored anew; without any, what was found before still holds.
        if last is not None and (not self.held_out or last.held_out == text_checksum(self.held_out)):
            self.last_evaluation = last
        try:
            self.generator.set_state(checkpoint.tensors["random.generator"])
        except RuntimeError:
            self.generator.manual_seed(self.settings.seed + self.step)
            warnings.warn(Warnings.W201.format(device=self.device), ElmoWarning, stacklevel=4)
