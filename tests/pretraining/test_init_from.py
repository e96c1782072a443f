"""Going on with a model: of any format, with the output head that it has or with a new one."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import ConfigError, ElmoWarning
from spacy_elmo.lm.bilm import BiLM
from spacy_elmo.lm.config import BiLMConfig
from spacy_elmo.lm.softmax import OutputHead, build_head
from spacy_elmo.pretraining import learner as learner_module
from spacy_elmo.pretraining.__main__ import build_parser, main, read_recipe
from spacy_elmo.pretraining.checkpoint import find_checkpoints
from spacy_elmo.pretraining.corpus import Corpus
from spacy_elmo.pretraining.evaluate import perplexity
from spacy_elmo.pretraining.learner import Learner
from spacy_elmo.pretraining.settings import TrainingSettings
from spacy_elmo.pretraining.starting_model import adopt_head, origin_of
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.weights.formats import LoadedModel, load_model, save_model
from spacy_elmo.weights.native import load_bilm, load_head, save_bilm
from tests.pretraining.small_runs import CONFIG, TEXT_WORDS, write_corpus, write_model

FAST = ["--batch-words=60", "--buffer-words=300", "--warmup-steps=3", "--peak-rate=0.01", "--dropout=0"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"))


def train(text: Path, source: object, output: Path, *options: str) -> list[dict[str, Any]]:
    """The lines of the metrics that are evaluations."""
    held_out = ["--held-out", str(text / "0.txt")]
    assert main([str(text), "--init-from", str(source), "--output", str(output), *held_out, *FAST, *options]) == 0
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "perplexity_joint" in line]


def perplexity_of(directory: Path, text: Path) -> float:
    model = load_model(directory, with_softmax=True)
    assert model.head is not None and model.vocabulary is not None
    return perplexity(model.bilm, model.head, Vocabulary(model.vocabulary), Corpus([text / "0.txt"]).sentences()).joint


def same_weights(one: BiLM | OutputHead, other: BiLM | OutputHead) -> bool:
    named = other.state_dict()
    return all(torch.equal(values, named[name]) for name, values in one.state_dict().items())


# Where it comes from.


@pytest.mark.parametrize("softmax", [{"kind": "full"}, {"kind": "adaptive", "cutoffs": [8, 16], "shrink": 2.0}])
def test_a_native_model_goes_on_with_its_head_and_words(tmp_path: Path, text: Path, softmax: dict[str, Any]) -> None:
    source = write_model(tmp_path / "source", softmax)
    evaluated = train(text, source, tmp_path / "run")
    assert evaluated[0]["step"] == 0
    assert evaluated[0]["perplexity_joint"] == pytest.approx(perplexity_of(source, text), rel=1e-5)
    assert evaluated[-1]["perplexity_joint"] < 0.9 * evaluated[0]["perplexity_joint"]
    assert evaluated[-1]["perplexity_joint"] == pytest.approx(perplexity_of(tmp_path / "run", text), rel=1e-5)
    assert load_head(tmp_path / "run").settings == load_head(source).settings
    assert Vocabulary.load(tmp_path / "run" / "vocabulary.txt.gz").words[-1] == "w29"
    assert not same_weights(load_bilm(source), load_bilm(tmp_path / "run"))


def test_a_native_model_without_head_gets_one_for_the_words_of_the_text(tmp_path: Path, text: Path) -> None:
    source = write_model(tmp_path / "source")
    evaluated = train(text, source, tmp_path / "run", "--softmax", '{"kind": "full"}', "--min-count=1")
    assert len(Vocabulary.load(tmp_path / "run" / "vocabulary.txt.gz")) == 43
    assert load_head(tmp_path / "run").settings == {"kind": "full", "projection": 8, "n_words": 43}
    assert evaluated[0]["step"] == 0 and evaluated[-1]["perplexity_joint"] < evaluated[0]["perplexity_joint"]


def test_the_softmax_is_that_of_the_seed(tmp_path: Path, text: Path) -> None:
    source = write_model(tmp_path / "source")
    before = torch.random.get_rng_state()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(text, source, tmp_path / name, f"--seed={seed}")
    assert torch.equal(torch.random.get_rng_state(), before)
    heads = [load_head(tmp_path / name) for name in "abc"]
    assert same_weights(heads[0], heads[1]) and not same_weights(heads[0], heads[2])


@pytest.mark.parametrize("folder", ["bilm-tf/model", "allennlp/elmo"])
def test_a_pair_of_hdf5(tmp_path: Path, text: Path, fixtures_dir: Path, folder: str) -> None:
    """It clips, and begins sentences from the canonical state, through which gradients go, too."""
    pytest.importorskip("h5py")
    pair = f"{fixtures_dir / folder / 'options.json'}::{fixtures_dir / folder / 'lm_weights.hdf5'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ElmoWarning)
        evaluated = train(text, pair, tmp_path / "run")
    config = load_bilm(tmp_path / "run").config
    assert (config.cell_clip, config.projection_clip, config.initial_state) == (3, 3, "canonical")
    assert evaluated[-1]["perplexity_joint"] < 0.9 * evaluated[0]["perplexity_joint"]


def test_a_checkpoint_of_tensorflow_goes_on_with_its_head(tmp_path: Path, text: Path) -> None:
    pytest.importorskip("h5py")
    from tests.weights.hdf5_model import bilm_tf_datasets, bilm_tf_options, random_model
    from tests.weights.tf_writer import bilm_tf_variables, write_bundle

    config = BiLMConfig.from_dict({**CONFIG.to_dict(), "initial_state": "canonical"})
    words = ["<S>", "</S>", "<UNK>", *TEXT_WORDS[:20]]
    datasets = bilm_tf_datasets(config, random_model(config))
    random = np.random.default_rng(5)
    datasets["softmax/W"] = random.normal(size=(len(words), config.projection), scale=0.3).astype("float32")
    datasets["softmax/b"] = np.zeros(len(words), "float32")
    source = tmp_path / "source"
    source.mkdir()
    options = {**bilm_tf_options(config), "bidirectional": True, "n_tokens_vocab": len(words)}
    options["char_cnn"]["n_characters"] = 261
    (source / "options.json").write_text(json.dumps(options))
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    write_bundle(source / "model.ckpt-7", bilm_tf_variables(datasets))
    # bilm-tf trains it on samples, and so may a run.
    evaluated = train(text, source, tmp_path / "run", "--softmax", '{"kind": "sampled", "n_samples": 6}')
    assert evaluated[-1]["perplexity_joint"] < 0.9 * evaluated[0]["perplexity_joint"]
    head = load_head(tmp_path / "run")
    assert head.settings["kind"] == "sampled" and head.settings["n_words"] == len(words)
    assert Vocabulary.load(tmp_path / "run" / "vocabulary.txt.gz").words == words


@pytest.mark.slow
def test_the_embedded_model_by_its_name(tmp_path: Path, text: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\n".join(["<S>", "</S>", "<UNK>", *TEXT_WORDS]) + "\n")
    options = ["--vocabulary", str(words), "--head-steps=5"]
    evaluated = train(text, "en_elmo_sm", tmp_path / "run", *options)
    assert evaluated[-1]["perplexity_joint"] < 0.5 * evaluated[0]["perplexity_joint"]
    assert "begun from the weights of: en_elmo_sm" in (tmp_path / "run" / "README.md").read_text()


# What becomes of it.


def test_the_head_learns_alone_at_first(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_model(tmp_path / "source")
    unchanged: list[bool] = []

    def learn(self: Learner, *arguments: Any, whole: Any = Learner.learn) -> None:
        whole(self, *arguments)
        unchanged.append(same_weights(load_bilm(source), self.bilm))

    monkeypatch.setattr(Learner, "learn", learn)
    train(text, source, tmp_path / "run", "--head-steps=4")
    assert len(unchanged) > 8 and unchanged == [True] * 4 + [False] * (len(unchanged) - 4)


def test_layers_learn_at_their_own_rates_along_a_slanted_triangle(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[list[float]] = []

    def set_rate(optimizer: torch.optim.Optimizer, rate: float, set_rate: Any = learner_module.set_rate) -> None:
        set_rate(optimizer, rate)
        rates.append([group["lr"] for group in optimizer.param_groups])

    monkeypatch.setattr(learner_module, "set_rate", set_rate)
    source = write_model(tmp_path / "source")
    options = ["--schedule=slanted-triangular", f"--layer-rate-decay={1 / 2.6}", "--epochs=4"]
    train(text, source, tmp_path / "run", *options)
    for *lower, head in rates:
        assert lower == pytest.approx([head / 2.6**3, head / 2.6**2, head / 2.6])
    of_head = [step[-1] for step in rates]
    top = of_head.index(max(of_head))
    assert 0.08 < top / len(of_head) < 0.13
    assert of_head[: top + 1] == sorted(of_head[: top + 1]) and of_head[top:] == sorted(of_head[top:], reverse=True)
    assert of_head[0] == pytest.approx(0.01 / 32) and max(of_head) == pytest.approx(0.01, rel=0.05)


def test_the_model_card_tells_where_it_began_and_what_came_of_it(tmp_path: Path, text: Path) -> None:
    source = write_model(tmp_path / "my-model", {"kind": "full"})
    evaluated = train(text, source, tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    assert "- begun from the weights of: my-model\n- licence of those weights: not known\n" in card
    assert str(tmp_path) not in card
    after, before = card.split("Of the weights that it began with")
    assert f"joint: {evaluated[0]['perplexity_joint']:.2f}," in before
    assert f"joint: {evaluated[-1]['perplexity_joint']:.2f}," in after


def test_weights_that_nothing_made_better_are_kept(tmp_path: Path, text: Path) -> None:
    """The best evaluation may be the first."""
    source = write_model(tmp_path / "source", {"kind": "full"})
    evaluated = train(text, source, tmp_path / "run", "--peak-rate=3", "--spike=0", "--max-gradient-norm=100")
    if evaluated[-1]["perplexity_joint"] > evaluated[0]["perplexity_joint"]:
        assert same_weights(load_bilm(source), load_bilm(tmp_path / "run"))
    else:
        pytest.fail("a rate of 3 made it better")


def test_the_result_can_be_written_as_hdf5(tmp_path: Path, text: Path) -> None:
    pytest.importorskip("h5py")
    source = write_model(tmp_path / "source", {"kind": "full"}, initial_state="canonical")
    train(text, source, tmp_path / "run")
    save_model(load_model(tmp_path / "run", with_softmax=True), tmp_path / "hdf5", "bilm-hdf5")
    shutil.copy(tmp_path / "run" / "vocabulary.txt.gz", tmp_path / "hdf5" / "vocab.txt.gz")
    again = load_model(tmp_path / "hdf5", with_softmax=True)
    assert same_weights(load_bilm(tmp_path / "run"), again.bilm)


# Going on with such a run.


def stopped(text: Path, source: Path, output: Path, *options: str) -> list[str]:
    """A run that was interrupted at its seventh step; what it was begun with comes back."""
    held_out = ["--held-out", str(text / "0.txt"), "--save-every=2"]
    arguments = [str(text), "--init-from", str(source), "--output", str(output), *held_out, *FAST, *options]
    steps: list[int] = []

    def learn(self: Learner, *arguments: Any, whole: Any = Learner.learn) -> None:
        steps.append(1)
        if len(steps) == 7:
            raise KeyboardInterrupt
        whole(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "learn", learn)
        assert main(arguments) == 130
    return arguments


@pytest.mark.parametrize("softmax", [None, {"kind": "full"}, {"kind": "adaptive", "cutoffs": [9], "shrink": 3.0}])
def test_it_goes_on_exactly_though_the_source_is_gone(
    tmp_path: Path, text: Path, softmax: dict[str, Any] | None
) -> None:
    source = write_model(tmp_path / "source", softmax)
    train(text, source, tmp_path / "whole", "--save-every=2", "--head-steps=3")
    arguments = stopped(text, source, tmp_path / "parted", "--head-steps=3")
    shutil.rmtree(source)
    assert main([*arguments, "--resume"]) == 0
    for name in ("model.safetensors", "softmax.safetensors", "vocabulary.txt.gz", "config.json", "README.md"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parted" / name).read_bytes(), name


def test_samples_of_a_full_head_go_on_exactly(tmp_path: Path, text: Path) -> None:
    source = write_model(tmp_path / "source", {"kind": "full"})
    options = ["--softmax", '{"kind": "sampled", "n_samples": 7}', "--save-every=2"]
    train(text, source, tmp_path / "whole", *options)
    arguments = stopped(text, source, tmp_path / "parted", *options)
    assert main([*arguments, "--resume"]) == 0
    for name in ("model.safetensors", "softmax.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parted" / name).read_bytes(), name


def test_the_model_need_not_be_named_again(tmp_path: Path, text: Path) -> None:
    source = write_model(tmp_path / "source", {"kind": "full"})
    train(text, source, tmp_path / "whole")
    arguments = stopped(text, source, tmp_path / "parted")
    place = arguments.index("--init-from")
    assert main([*arguments[:place], *arguments[place + 2 :], "--resume"]) == 0
    for name in ("model.safetensors", "softmax.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parted" / name).read_bytes(), name


def test_other_settings_are_named(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = stopped(text, write_model(tmp_path / "source", {"kind": "full"}), tmp_path / "run")
    for option in ("--peak-rate=0.02", '--softmax={"kind": "sampled"}'):
        assert main([*arguments, option, "--resume"]) == 1
        assert "[ELMO-E213]" in capsys.readouterr().err


def test_without_a_checkpoint_the_source_is_needed_again(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(text), "--init-from", str(tmp_path / "gone"), "--output", str(tmp_path / "run"), "--resume"]
    assert main(arguments) == 1
    assert "[ELMO-E170]" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_run_that_began_from_nothing_is_not_one_that_goes_on_with_a_model(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--character-dim=4", "--filters=[[1, 4]]", "--projection=4", "--cells=4", "--n-highway=0", *FAST]
    output = ["--output", str(tmp_path / "run")]
    assert main([str(text), *output, *tiny]) == 0
    assert main([str(text), *output, *FAST, "--resume", "--init-from", "en_elmo_sm"]) == 1
    assert "[ELMO-E287]" in capsys.readouterr().err


def test_newest_checkpoint_broken(tmp_path: Path, text: Path) -> None:
    source = write_model(tmp_path / "source")
    train(text, source, tmp_path / "whole", "--save-every=2")
    arguments = stopped(text, source, tmp_path / "parted")
    shutil.rmtree(source)
    find_checkpoints(tmp_path / "parted" / "checkpoints")[0].write_bytes(b"broken")
    with pytest.warns(ElmoWarning, match="W200"):
        assert main([*arguments, "--resume"]) == 0
    assert same_weights(load_bilm(tmp_path / "whole"), load_bilm(tmp_path / "parted"))


# What does not go together.


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 1
    return capsys.readouterr().err


def test_a_model_keeps_its_shape(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(write_model(tmp_path / "source"))
    common = [str(text), "--init-from", source, "--output", str(tmp_path / "run")]
    assert "[ELMO-E416] The settings ['cells', 'n_layers']" in refused(capsys, *common, "--n-layers=3", "--cells=7")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"bilm": {"projection": 4}, "training": {}}))
    assert "[ELMO-E416] The settings ['projection']" in refused(capsys, *common, "--config", str(path))
    assert not (tmp_path / "run").exists()


def test_the_shape_of_a_preset_gives_way(tmp_path: Path) -> None:
    source = str(write_model(tmp_path / "source", {"kind": "full"}))
    options = build_parser("p").parse_args(["x", "--output", "y", "--preset=elmo-2018", "--init-from", source])
    recipe = read_recipe(options)
    assert recipe.config == CONFIG
    assert (recipe.settings.optimizer, recipe.settings.objective) == ("adagrad", "streams")
    assert recipe.settings.softmax["n_samples"] == 8192
    assert recipe.initial is not None and recipe.initial.head is not None
    assert recipe.initial.head.settings["kind"] == "sampled"
    assert torch.equal(recipe.initial.head.state_dict()["output.weight"], load_head(Path(source)).output.weight)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--vocabulary-size=9", "vocabulary_size"),
        ("--min-count=3", "min_count"),
        ('--softmax={"kind": "tied"}', "softmax"),
    ],
)
def test_a_head_keeps_its_shape(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], option: str, name: str
) -> None:
    source = str(write_model(tmp_path / "source", {"kind": "adaptive", "cutoffs": [8], "shrink": 2.0}))
    message = refused(capsys, str(text), "--init-from", source, "--output", str(tmp_path / "run"), option)
    assert f"[ELMO-E286] The settings ['{name}']" in message and "'adaptive'" in message


def test_other_words_call_for_another_head(tmp_path: Path, text: Path) -> None:
    source = write_model(tmp_path / "source", {"kind": "full"})
    words = tmp_path / "words.txt"
    words.write_text("\n".join(["<S>", "</S>", "<UNK>", *TEXT_WORDS[:11]]) + "\n")
    train(text, source, tmp_path / "run", "--vocabulary", str(words), '--softmax={"kind": "tied"}')
    assert load_head(tmp_path / "run").settings["n_words"] == 14
    assert load_head(tmp_path / "run").settings["kind"] == "tied"


def test_the_same_words_call_for_none(tmp_path: Path, text: Path) -> None:
    source = write_model(tmp_path / "source", {"kind": "full"})
    evaluated = train(text, source, tmp_path / "run", "--vocabulary", str(source / "vocabulary.txt.gz"))
    assert evaluated[0]["perplexity_joint"] == pytest.approx(perplexity_of(source, text), rel=1e-5)


@pytest.mark.parametrize("kind", ["words", "words_and_characters"])
def test_models_over_words_are_not_trained(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    if kind == "words":
        words = ["<S>", "</S>", "<UNK>", "a"]
        save_bilm(
            BiLM(BiLMConfig(token_encoder="words", n_words=4, projection=4, cells=4), {"words": words}), tmp_path / "m"
        )
        source = tmp_path / "m"
    else:
        pytest.importorskip("h5py")
        from tests.weights.many_langs_model import write_model as write_many_langs

        source = write_many_langs(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ElmoWarning)
        message = refused(capsys, str(text), "--init-from", str(source), "--output", str(tmp_path / "run"))
    assert "[ELMO-E222]" in message and kind in message


def test_a_softmax_whose_words_are_not_known_is_not_kept(tmp_path: Path) -> None:
    bilm, head = BiLM(CONFIG), build_head({"kind": "full", "projection": 8, "n_words": 9})
    with pytest.warns(ElmoWarning, match="W227.*somewhere"):
        model, settings = adopt_head(
            LoadedModel(bilm, head, facts={"source": "somewhere"}), TrainingSettings(), {}, None
        )
    assert model.head is None and settings == TrainingSettings()


def test_settings_that_say_the_same_are_accepted(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", {"kind": "adaptive", "cutoffs": [8], "shrink": 2.0})
    for softmax in (
        {"kind": "adaptive", "cutoffs": [8], "shrink": 2},
        {"kind": "adaptive", "cutoffs": [8, 99], "shrink": 2.0},
    ):
        loaded = load_model(source, with_softmax=True)
        _, settings = adopt_head(loaded, TrainingSettings(softmax=softmax), {"softmax"}, None)
        assert settings.softmax["cutoffs"] == [8]
    with pytest.raises(ConfigError, match="E286"):
        adopt_head(load_model(source, with_softmax=True), TrainingSettings(softmax={"kind": "full"}), {"softmax"}, None)


def test_licence_and_name_go_along() -> None:
    facts = {"source": "/somewhere/weights.hdf5", "name": "ai2-small", "licence": "Apache 2.0"}
    assert origin_of(LoadedModel(BiLM(CONFIG), facts=facts)) == {"name": "ai2-small", "licence": "Apache 2.0"}
    assert origin_of(LoadedModel(BiLM(CONFIG), facts={"source": "/a/o.json::/a/w.hdf5"})) == {"name": "w.hdf5"}
    assert origin_of(None) is None


def test_unknown_source(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, str(text), "--init-from", "en_elmo_smm", "--output", str(tmp_path / "run"))
    assert "[ELMO-E170]" in message and "'en_elmo_smm'" in message
