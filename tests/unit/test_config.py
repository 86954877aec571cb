from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simcse.config import EncoderConfig, OptimConfig, Settings
from simcse.errors import UsageError
from simcse_platform.config import (
    TrackingConfig,
    TrainRun,
    flatten,
    from_tree,
    load,
    override,
    shown,
    to_yaml,
)

RUN = TrainRun(encoder=EncoderConfig(model="some/folder"))


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("encoder.model=", "is None: Input should be a valid string"),
        ("encoder.pooling=max", "is 'max': Input should be 'cls', 'cls_before_pooler', 'avg', "),
        ("encoder.head=mlp", "is 'mlp': Input should be 'none', 'training' or 'always'"),
        ("encoder.max_length=2", "is 2: Input should be greater than or equal to 3"),
        ("encoder.dropout=1", "is 1: Input should be less than 1"),
        ("encoder.dropout=-0.1", "is -0.1: Input should be greater than or equal to 0"),
        ("encoder.length_buckets=0", "is 0: Input should be greater than or equal to 1"),
        ("objective.temperature=0", "is 0: Input should be greater than 0"),
        ("objective.temperature=warm", "is 'warm': Input should be a valid number"),
        ("optim.learning_rate=0", "is 0: Input should be greater than 0"),
        ("optim.learning_rate=nan", "is 'nan': Input should be a finite number"),
        ("optim.learning_rate=.inf", "is inf: Input should be a finite number"),
        ("optim.weight_decay=-1", "is -1: Input should be greater than or equal to 0"),
        ("optim.beta1=1", "is 1: Input should be less than 1"),
        ("optim.beta2=-1", "is -1: Input should be greater than or equal to 0"),
        ("optim.eps=0", "is 0: Input should be greater than 0"),
        ("optim.warmup_share=1", "is 1: Input should be less than 1"),
        ("optim.max_gradient_norm=-1", "is -1: Input should be greater than or equal to 0"),
        ("data.corpus=a.txt", "is 'a.txt': write a list such as [a, b]"),
        ("data.columns=text", "is 'text': write a list such as [a, b]"),
        ("data.batches_per_window=0", "is 0: Input should be greater than or equal to 1"),
        ("data.max_bad_share=2", "is 2: Input should be less than or equal to 1"),
        ("dev.tasks=STS12", "is 'STS12': write a list such as [a, b]"),
        ("dev.every=0", "is 0: Input should be greater than or equal to 1"),
        ("dev.patience=0", "is 0: Input should be greater than or equal to 1"),
        ("scale.num_workers=0", "is 0: Input should be greater than or equal to 1"),
        ("scale.zero_stage=4", "is 4: Input should be 0, 1, 2 or 3"),
        (
            "scale.offload=maybe",
            "is 'maybe': Input should be 'nothing', 'optimizer' or 'parameters'",
        ),
        ("scale.persistence_threshold=-1", "is -1: Input should be greater than or equal to 0"),
        ("scale.device=tpu", "is 'tpu': Input should be 'auto', 'cpu' or 'cuda'"),
        ("scale.precision=fp16", "is 'fp16': Input should be 'fp32' or 'bf16'"),
        ("scale.threads_per_worker=0", "is 0: Input should be greater than or equal to 1"),
        ("scale.cpus_per_worker=0", "is 0: Input should be greater than 0"),
        ("scale.max_failures=-1", "is -1: Input should be greater than or equal to 0"),
        ("checkpoint.every=0", "is 0: Input should be greater than or equal to 1"),
        ("checkpoint.keep=0", "is 0: Input should be greater than or equal to 1"),
        ("tracking.experiment=7", "is 7: Input should be a valid string"),
        ("tracking.log_every=0", "is 0: Input should be greater than or equal to 1"),
        ("global_batch_size=1", "is 1: Input should be greater than or equal to 2"),
        ("global_batch_size=64.5", "is 64.5: Input should be a valid integer"),
        ("epochs=0", "is 0: Input should be greater than or equal to 1"),
        ("max_steps=0", "is 0: Input should be greater than or equal to 1"),
        ("seed=-1", "is -1: Input should be greater than or equal to 0"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_dotted_path(
    assignment: str, complaint: str
) -> None:
    path = assignment.partition("=")[0]
    with pytest.raises(UsageError, match=f"^{re.escape(f'{path} {complaint}')}"):
        override(RUN, [assignment])


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (
            ["encoder.pooling=avg"],
            "encoder.head is 'training' but encoder.pooling is 'avg': the head sits on [CLS], so "
            "set encoder.pooling=cls or encoder.head=none",
        ),
        (
            ["global_batch_size=3", "scale.num_workers=4"],
            "global_batch_size is 3 but scale.num_workers is 4: every worker needs a row, so raise "
            "the batch or use fewer workers",
        ),
        (
            ["scale.offload=optimizer"],
            "scale.offload=optimizer needs scale.zero_stage=1 or more, and it is 0",
        ),
        (
            ["scale.offload=parameters", "scale.zero_stage=2"],
            "scale.offload=parameters needs scale.zero_stage=3 or more, and it is 2",
        ),
        (
            ["data.columns=[]"],
            "data.columns is []: name each text column once, or set data.columns=null for all of "
            "them",
        ),
        (
            ["data.columns=[a, b, a]"],
            "data.columns is ['a', 'b', 'a']: name each text column once, or set "
            "data.columns=null for all of them",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        override(RUN, assignments)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("encoder.modle=x", "there is no setting encoder.modle: did you mean encoder.model?"),
        ("learning_rate=1", "there is no setting learning_rate: did you mean optim.learning_rate?"),
        ("encoder.model.x=1", "there is no setting encoder.model.x: did you mean encoder.model?"),
        ("zzz=1", "there is no setting zzz: `simcse train --recipe NAME --dry-run` shows them all"),
        (
            "dev=1",
            "dev is a section: name one of tasks, data, every, patience, lowest_score, "
            "highest_uniformity in it",
        ),
        ("dev.every", "'dev.every' is no assignment: write section.field=value"),
        ("=3", "'=3' is no assignment: write section.field=value"),
        ("data.corpus=[", "data.corpus=[ is no YAML value: put text into quotes"),
        (
            "encoder.model=2020-13-45",
            "encoder.model=2020-13-45 is no YAML value: put text into quotes",
        ),
    ],
)
def test_an_assignment_that_names_no_setting_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        override(RUN, [assignment])


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "encoder is missing: it has no default"),
        ({"encoder": {}}, "encoder.model is missing: it has no default"),
        ({"encoder": 3}, "encoder is 3: Input should be a valid dictionary or instance of Enc"),
        ({"encoder": {"model": {}}}, "encoder.model is {}: Input should be a valid string"),
        (
            {"encoder": {"model": "m"}, "optimizer": {}},
            "there is no setting optimizer: did you mean ",
        ),
        (
            {"encoder": {"model": "m"}, "scale": {"workers": 2}},
            "there is no setting scale.workers: did you mean scale.num_workers?",
        ),
    ],
)
def test_a_tree_that_is_no_run_is_refused(tree: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        from_tree(tree)


def test_an_assignment_changes_its_field_only_and_the_last_one_holds() -> None:
    changed = override(RUN, ["optim.eps=1e-6", "optim.beta1=0.5", "optim.beta1=0.8"])
    assert changed == RUN.model_copy(update={"optim": OptimConfig(eps=1e-6, beta1=0.8)})
    assert RUN.optim == OptimConfig()


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("optim.learning_rate=3e-5", 3e-5),
        ("optim.learning_rate=1", 1.0),
        ("data.corpus=[a b.txt, c]", ("a b.txt", "c")),
        ("dev.tasks=[]", ()),
        ("max_steps=null", None),
        ("tracking.experiment='2026'", "2026"),
        ("encoder.model=~/a=b", "~/a=b"),
    ],
)
def test_values_are_yaml_and_numbers_may_have_an_exponent(assignment: str, value: object) -> None:
    found: object = override(RUN, [assignment])
    for name in assignment.partition("=")[0].split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_a_run_that_was_written_is_the_run_that_is_loaded(tmp_path: Path) -> None:
    run = override(
        RUN,
        [
            "encoder.model='Größe: [x] #1'",
            "optim.learning_rate=3e-5",
            "data.corpus=['yes', '1e5', ':smile:']",
            "dev.patience=3",
            "scale.zero_stage=2",
            "tracking.experiment='0123'",
        ],
    )
    (tmp_path / "run.yaml").write_text(to_yaml(run), encoding="utf-8")
    assert load(tmp_path / "run.yaml") == run
    (tmp_path / "run.json").write_text(run.model_dump_json(), encoding="utf-8")
    assert load(tmp_path / "run.json") == run


def test_a_file_says_only_what_differs_from_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("encoder: {model: some/folder}\noptim: {learning_rate: 3e-5}\n")
    assert load(file) == RUN


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"encoder: [", r"is no YAML: while parsing"),
        (b"\xff\xfe", r"is no YAML: "),
        (b"just words", r"holds no mapping: write lines such as `encoder: \.\.\.`$"),
        (b"encoder: {model: m}\nseeed: 1\n", r": there is no setting seeed: did you mean seed\?$"),
        (b"encoder: {model: m}\nseed: -1\n", r": seed is -1: Input should be greater than or "),
    ],
)
def test_a_file_that_is_no_run_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=f"^{re.escape(str(file))} ?{message}") as raised:
        load(file)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is no configuration file .*/no\.yaml: check the"):
        load(tmp_path / "no.yaml")
    with pytest.raises(UsageError, match=r" cannot be read \(Is a directory\): name a YAML file$"):
        load(tmp_path)


def test_flattened_settings_are_text_by_dotted_path_and_complete() -> None:
    flat = flatten(override(RUN, ["data.corpus=[a, b]"]))
    assert flat["encoder.model"] == "some/folder"
    assert flat["data.corpus"] == '["a", "b"]'
    assert flat["encoder.dropout"] == "null"
    assert flat["scale.offload"] == "nothing"
    assert flat["optim.learning_rate"] == "3e-05"
    assert list(flat) == [path for path, _ in settings_of(TrainRun)]


def test_every_setting_says_what_it_is_and_cannot_be_changed() -> None:
    assert [path for path, described in settings_of(TrainRun) if not described] == []
    with pytest.raises(ValueError, match="frozen"):
        RUN.seed = 3  # type: ignore[misc]


def settings_of(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Dotted path and description of every setting."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Settings):
            yield from settings_of(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, field.description


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("http://me:secret@host:5000", "http://host:5000"),
        ("https://host/path@1", "https://host/path@1"),
        ("sqlite:///runs/mlflow.db", "sqlite:///runs/mlflow.db"),
        (None, None),
    ],
)
def test_a_run_is_kept_and_shown_without_a_password(uri: str | None, kept: str | None) -> None:
    run = TrainRun(encoder=EncoderConfig(model="m"), tracking=TrackingConfig(uri=uri))
    assert shown(run).tracking.uri == kept
    assert shown(run).model_copy(update={"tracking": run.tracking}) == run
    assert "secret" not in to_yaml(shown(run))
