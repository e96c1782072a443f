"""The training run: begin or go on, step, report, evaluate, save."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..errors import Errors, TrainingError
from ..lm.bilm import BiLM
from ..lm.config import BiLMConfig
from ..lm.softmax import OutputHead, build_head
from ..weights.native import VOCABULARY_FILE, fill, save_bilm, save_head
from .checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from .corpus import Corpus, Position, Sentence
from .evaluate import Perplexity, perplexity
from .model_card import model_card
from .objective import log_probabilities, prepare_batch
from .optimization import SeededDropout, build_optimizer, learning_rate, optimizer_tensors, restore_optimizer
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    epochs (int): Passes over the corpus.
    batch_words (int): Words of a step.
    peak_rate (float): Highest learning rate.
    warmup_steps (int): Steps until then.
    dropout (float): On the input of each LSTM layer and of the softmax.
    weight_decay (float): Of AdamW.
    max_gradient_norm (float): Bound of the norm of all gradients together.
    vocabulary_size (int): Words the softmax predicts, specials included.
    min_count (int): Rarer words are left out of the vocabulary.
    softmax (dict): The output head: "kind" and its settings, without sizes.
    bfloat16 (bool): Matrix products in bfloat16.
    seed (int): Decides the first weights, the order of the text and the dropout.
    evaluate_every (int): Steps between held-out evaluations.
    save_every (int): Steps between checkpoints.
    """

    epochs: int = 1
    batch_words: int = 4096
    peak_rate: float = 4e-3
    warmup_steps: int = 300
    dropout: float = 0.1
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    vocabulary_size: int = 30_000
    min_count: int = 2
    softmax: dict[str, Any] = field(default_factory=lambda: {"kind": "adaptive", "cutoffs": [1000, 4000, 12000], "shrink": 2.0})
    bfloat16: bool = False
    seed: int = 0
    evaluate_every: int = 1000
    save_every: int = 500


class Run:
    """A training run and its directory.

    directory (Path): Gets `checkpoints/`, `vocabulary.txt.gz`, `metrics.jsonl` and, at the end, the weights.
    config (BiLMConfig): The model to train.
    settings (TrainingSettings): How.
    corpus (Corpus): The text.
    held_out (list): Sentences for evaluation; may be empty.
    device (torch.device): Where to train.
    """

    def __init__(
        self,
        directory: Path,
        config: BiLMConfig,
        settings: TrainingSettings,
        corpus: Corpus,
        held_out: list[Sentence],
        device: torch.device,
    ) -> None:
        self.directory, self.config, self.settings = directory, config, settings
        self.corpus, self.held_out, self.device = corpus, held_out, device
        self.step, self.words, self.words_an_epoch = 0, 0, 0
        self.position = Position()
        self.last_perplexity: Perplexity | None = None

    def begin(self, resume: bool) -> None:
        """Set up vocabulary, weights and optimizer, new or from the newest checkpoint.

        resume (bool): Go on with the run in the directory; without a checkpoint there, begin.
        RAISES (TrainingError): E212 if the directory holds a run and `resume` is false, E213 if that run has other
            settings, E210, E211 for checkpoints that cannot be written or read.
        """
        checkpoint = load_newest_checkpoint(self.directory / "checkpoints")
        if checkpoint is not None and not resume:
            raise TrainingError(Errors.E212.format(directory=self.directory))
        if checkpoint is not None:
            self._check_same_run(checkpoint.progress)
        self.vocabulary = self._vocabulary(fresh=checkpoint is None)
        with torch.random.fork_rng():
            torch.manual_seed(self.settings.seed)
            bilm = BiLM(self.config)
            sizes = {"projection": self.config.projection, "n_words": len(self.vocabulary)}
            head = build_head({**self._softmax_settings(len(self.vocabulary)), **sizes})
        self.bilm, self.head = bilm.to(self.device), head.to(self.device)
        self.parameters = [*self.bilm.parameters(), *self.head.parameters()]
        self.optimizer = build_optimizer(self.parameters, self.settings.weight_decay)
        self.generator = torch.Generator(self.device).manual_seed(self.settings.seed)
        if checkpoint is not None:
            self._restore(checkpoint)

    def train(self) -> None:
        """Train to the end and write the weights. Ctrl-C saves a checkpoint and is raised again.

        RAISES (TrainingError): E214 if the loss is not finite, E210 if a checkpoint cannot be written.
        """
        settings = self.settings
        batches = self.corpus.batches(settings.batch_words, settings.seed, settings.epochs, self.position)
        total = self.words_an_epoch * settings.epochs
        saved = self.step
        try:
            with tqdm(total=total, initial=self.words, unit="w", unit_scale=True, smoothing=0.05) as bar:
                for position, sentences in batches:
                    loss, rate = self._train_step(sentences)
                    self.position = position
                    bar.update(sum(map(len, sentences)))
                    if self.step % 20 == 0:
                        bar.set_postfix(loss=f"{float(loss):.3f}", rate=f"{rate:.2e}", step=self.step)
                    if self.step % 100 == 0:
                        self._log(step=self.step, words=self.words, loss=self._finite(loss), rate=rate, seconds=bar.format_dict["elapsed"])
                    if self.step % settings.save_every == 0:
                        self.save_checkpoint()
                        saved = self.step
                    if self.step % settings.evaluate_every == 0:
                        self.evaluate()
        except KeyboardInterrupt:
            if self.step > saved:
                self.save_checkpoint()
            raise
        self.save_checkpoint()
        self.evaluate()
        self.save_weights()

    def evaluate(self) -> Perplexity | None:
        """RETURNS (Perplexity | None): On the held-out text, logged; None if there is none."""
        if not self.held_out:
            return None
        with self._precision():
            found = perplexity(self.bilm, self.head, self.vocabulary, self.held_out)
        self._log(step=self.step, words=self.words, **{f"perplexity_{name}": value for name, value in found._asdict().items()})
        tqdm.write(f"step {self.step:,}  held-out perplexity: forward {found.forward:.2f}  backward {found.backward:.2f}")
        self.last_perplexity = found
        return found

    def save_checkpoint(self) -> None:
        """Write all that is needed to go on."""
        parts = {
            "bilm": self.bilm.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer),
            "random": {"generator": self.generator.get_state()},
        }
        tensors = {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        progress = {**self._identity(), "step": self.step, "words": self.words, "position": list(self.position)}
        save_checkpoint(self.directory / "checkpoints", self.step, Checkpoint(tensors, progress))

    def save_weights(self) -> None:
        """Write the weights directory: config, weights, softmax, model card; the vocabulary is there already."""
        card = model_card(self.config, asdict(self.settings), self.step, self.words, len(self.vocabulary), self.last_perplexity)
        save_bilm(self.bilm, self.directory, model_card=card)
        save_head(self.head, self.directory)

    def _train_step(self, sentences: list[Sentence]) -> tuple[Tensor, float]:
        settings = self.settings
        rate = learning_rate(self.words / max(1, self.words_an_epoch * settings.epochs), self.step, settings.peak_rate, settings.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = prepare_batch(sentences, self.vocabulary, self.device)
        dropout = SeededDropout(settings.dropout, self.generator) if settings.dropout else None
        with self._precision():
            loss = -log_probabilities(self.bilm, self.head, batch, dropout).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, settings.max_gradient_norm)
        self.optimizer.step()
        self.step += 1
        self.words += sum(map(len, sentences))
        return loss.detach(), rate

    def _finite(self, loss: Tensor) -> float:
        value = float(loss)
        if value != value or value in (float("inf"), float("-inf")):
            raise TrainingError(Errors.E214.format(step=self.step, value=value))
        return value

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bfloat16)

    def _vocabulary(self, fresh: bool) -> Vocabulary:
        path = self.directory / VOCABULARY_FILE
        if not fresh:
            return Vocabulary.load(path)
        counted = Vocabulary.count(self._counted(), self.settings.vocabulary_size, self.settings.min_count)
        counted.save(path)
        return counted

    def _counted(self) -> Iterator[Sentence]:
        for sentence in tqdm(self.corpus.sentences(), unit=" sentences", unit_scale=True, desc="counting words"):
            self.words_an_epoch += len(sentence)
            yield sentence

    def _softmax_settings(self, n_words: int) -> dict[str, Any]:
        """A small text has a small vocabulary: clusters that would be empty are left out."""
        softmax = dict(self.settings.softmax)
        if softmax.get("kind") == "adaptive":
            softmax["cutoffs"] = [cutoff for cutoff in softmax["cutoffs"] if cutoff < n_words]
            if not softmax["cutoffs"]:
                softmax = {"kind": "full"}
        return softmax

    def _identity(self) -> dict[str, Any]:
        return {"config": self.config.to_dict(), "settings": asdict(self.settings), "words_an_epoch": self.words_an_epoch}

    def _check_same_run(self, progress: dict[str, Any]) -> None:
        found = {**progress["config"], **progress["settings"]}
        given = json.loads(json.dumps({**self.config.to_dict(), **asdict(self.settings)}))
        changed = {name: (found.get(name), value) for name, value in given.items() if found.get(name) != value}
        if changed:
            raise TrainingError(Errors.E213.format(directory=self.directory, changed=changed))

    def _restore(self, checkpoint: Checkpoint) -> None:
        source = str(self.directory / "checkpoints")
        fill(self.bilm, checkpoint.part("bilm"), source)
        fill(self.head, checkpoint.part("head"), source)
        restore_optimizer(self.optimizer, checkpoint.part("optimizer"))
        self.generator.set_state(checkpoint.tensors["random.generator"])
        progress = checkpoint.progress
        self.step, self.words, self.words_an_epoch = progress["step"], progress["words"], progress["words_an_epoch"]
        self.position = Position(*progress["position"])

    def _log(self, **values: Any) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
