"""The data: verl's own data set is built of all files, as the run builds it, and a sample of its rows is looked at;
prompts are rendered as agent loops do it. `datasets` keeps what it has read, so the run does not read it again.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...config.values import ConfigError, check_each, refused
from ...core.trajectory import AGENT_COLUMN, SOURCE
from ...runtime.containment import contained, first_line
from .loops_and_tools import PLAIN_LOOP, TOOL_LOOP, check_name, loop_class, may_score_itself, tool_schemas

SAMPLE_ROWS = 512  # of an option's files together; where they have no more, all of them
_LONGEST = 16  # prompts, by their bytes, that are looked at, too
PICTURE_SAMPLE_ROWS = 64  # to prepare pictures takes tenths of a second each
ANSWER = "reward_model"  # verl's reward managers read this column and `SOURCE` by name
COLUMNS = (
    "verl reads four columns: prompt=[{{'role': 'user', 'content': TEXT}}] (data.prompt_key={}), data_source=TEXT, "
    "reward_model={{'ground_truth': ANSWER}}, extra_info; docs/your_own.md makes them"
)
UNSEEN = "training sees no videos and no audio; leave them out"
_TWO_PROMPTS = ("12", "345")  # which any template has to tell apart
# verl's per-prompt overrides, and what verl and this recipe note of each prompt.
UNSUPPORTED_COLUMNS = ("__rollout_n__", "__do_sample__", "uid", "validate", "global_steps")
_LIMIT = "data.max_prompt_length"
EXTRA, TOOLS_KWARGS = "extra_info", "tools_kwargs"  # of rows: what verl creates instances of tools with
_OTHER_SAMPLES = (
    "verl chooses data.{}_max_samples={} prompts at every start, others when the run is resumed; set a seed, such as 1"
)


class Prompts:
    """Renders prompts as agent loops do, and counts their tokens.

    Args:
        model: verl's `HFModelConfig`.

    Raises:
        ConfigError: if such a model cannot be trained here, or its chat template fails.
    """

    def __init__(self, config: DictConfig, model: Any) -> None:
        from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

        from ...rollout.codec import codec

        self.model, self._data = model, config.data
        codec().check_model(config, self.model)
        self._tools = tool_schemas(config)
        self.unit = f"tokens, schemas of {len(self._tools)} tools included" if self._tools else "tokens"
        self.default_loop = config.actor_rollout_ref.rollout.agent.default_agent_loop
        try:
            self._builder = create_continuous_token_builder(
                self.model.tokenizer,
                hf_model_type=getattr(self.model.hf_config, "model_type", None),
                chat_template_kwargs=config.data.apply_chat_template_kwargs,
                mm_processor_kwargs=config.data.mm_processor_kwargs,
                processor=self.model.processor,
            )
            empty = [{"role": "user", "content": ""}]
            self._template_tok = self.count_tok({"raw_prompt": empty, AGENT_COLUMN: TOOL_LOOP})
            self._check_template(config)
        except ConfigError:
            raise
        except Exception as error:  # the template is the model's own code
            remedy = "set actor_rollout_ref.model.custom_chat_template, or correct data.apply_chat_template_kwargs"
            key = "actor_rollout_ref.model.path"
            raise refused(config, key, f"its chat template fails: {error}; {remedy}") from error

    def _check_template(self, config: DictConfig) -> None:
        """Refuse a chat template that leaves out what is asked, as the name of a file in place of a text does: the run
        would train on answers to that name.
        """
        rendered = {
            tuple(self._builder.build_initial_tokens([{"role": "user", "content": text}], tools=self._tools or None))
            for text in _TWO_PROMPTS
        }
        if len(rendered) == len(_TWO_PROMPTS):
            return
        if config.actor_rollout_ref.model.custom_chat_template is None:
            remedy = f"its chat template makes the same tokens of {' and '.join(_TWO_PROMPTS)}; correct it"
            raise refused(config, "actor_rollout_ref.model.path", remedy)
        remedy = (
            "is the text of a template, and makes the same tokens of every prompt; give the text, or keep it as "
            "chat_template.jinja beside a copy of the tokenizer, and name that folder: "
            "actor_rollout_ref.model.tokenizer_path"
        )
        raise refused(config, "actor_rollout_ref.model.custom_chat_template", remedy)

    def count_tok(self, row: dict[str, Any]) -> int:
        """Of a row of verl's data set, with the tools that its agent loop offers."""
        tools = self._tools
        if row.get(AGENT_COLUMN, self.default_loop) == PLAIN_LOOP:
            tools = []
        elif selected := (row.get("extra_info") or {}).get("tool_selection"):
            tools = [tool for tool in tools if tool["function"]["name"] in selected]
        from verl.utils.dataset.rl_dataset import get_dataset_class

        from ...rollout.codec import codec, items_of

        messages, media = list(row["raw_prompt"]), {}
        if any(items_of(messages)):
            parts = {"processor": self.model.processor, "dataset_cls": get_dataset_class(self._data)}
            media = asyncio.run(codec().shown(messages, **parts, data=self._data))
        return len(self._builder.build_initial_tokens(messages, tools=tools or None, images=media.get("images")))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Of the rows of an option's files, as verl's data set gives them.

    Attributes:
        key: the option.
        rows: how many there are in all [count].
        taken: of these, the sample; a custom class may have left some out.
        kept: of the sample, those that verl's filter keeps [count].
        is_custom: a data set class of the user's reads the files.
    """

    key: str
    rows: int
    taken: list[dict[str, Any]]
    kept: int
    is_custom: bool

    @property
    def blamed(self) -> str:
        """The option that says how rows are made."""
        return "data.custom_cls.path" if self.is_custom else self.key


def check_data(
    config: DictConfig, options: AsyncDAPOConfig, prompts: Prompts, row_of_source: dict[str, dict[str, Any]]
) -> str:
    """Check that files exist, that verl can make a data set of them with prompts enough, and that no prompt is cut.

    Args:
        row_of_source: filled with one row of every data source as verl's data set gives it, to try the reward function
            on; also where other files are refused.

    Returns:
        In words, which prompts verl leaves out, and whose agent loop has to give them a score.

    Raises:
        ConfigError: naming key, value and remedy; ConfigErrors where both options' files are wrong.
    """
    told: list[str] = []

    def check(key: str, max_samples: int, wanted: int, unit: str) -> None:
        sample = _read_by_verl(config, f"data.{key}", prompts)
        available = min(sample.rows, max_samples) if max_samples > 0 else sample.rows
        if available < wanted and not sample.is_custom:
            lower = f"lower data.train_batch_size={wanted} or " if key == "train_files" else ""
            raise refused(config, sample.key, f"has {available} prompts, fewer than {unit}; {lower}add data")
        if not sample.taken:
            raise refused(config, sample.blamed, f"makes no prompt of {sample.key}; correct the class")
        if 0 < max_samples < sample.rows and config.data.shuffle and config.data.seed is None:
            raise ConfigError("data.seed", None, _OTHER_SAMPLES.format(key.split("_")[0], max_samples))
        for row in sample.taken:
            _check_row(config, sample, row, prompts)
        scorable = [row for row in sample.taken if _is_scorable(config, row)]
        for row in scorable:
            row_of_source.setdefault(row[SOURCE], row)
        if len(scorable) < len(sample.taken):
            alone = sorted({_loop_of(row, prompts) for row in sample.taken if not _is_scorable(config, row)})
            told.append(
                f"{sample.key}: no reward function can score what {', '.join(alone)} answers, as it has rows "
                f"without {SOURCE} or a ground truth; see that the loop gives each trajectory a score"
            )
        said = _check_lengths(config, sample, prompts, available=available, wanted=wanted, unit=unit)
        told.extend([said] if said else [])

    data = config.data
    check_each(
        [
            partial(check, "train_files", data.train_max_samples, options.target_valid_groups, "one batch"),
            partial(check, "val_files", data.val_max_samples, 1, "one prompt"),
        ]
    )
    return "; ".join(told)


class _Rows(list[dict[str, Any]]):
    """Rows that verl's filter takes in place of a table: without its processes and its cache."""

    def filter(self, function: Callable[[dict[str, Any]], bool], **_: Any) -> "_Rows":
        return _Rows(filter(function, self))


def _read_by_verl(config: DictConfig, key: str, prompts: Prompts) -> _Sample:
    """Rows at equal distances, the first of each data source, and the first that lacks something; where verl filters
    nothing, the longest, too.

    Raises:
        ConfigError: with what went wrong in verl's code, or in a data set class of the user's.
    """
    from verl.trainer.ppo.utils import create_rl_dataset

    is_custom = config.data.custom_cls.path is not None
    data = deepcopy(config.data)
    data.filter_overlong_prompts = config.data.filter_overlong_prompts and is_custom
    data.filter_overlong_prompts_workers, data.use_shm = None, False
    files = config.data[key.removeprefix("data.")]
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), contained():
            data_set: Any = create_rl_dataset(files, data, prompts.model.tokenizer, prompts.model.processor)
            table = None if is_custom else data_set.dataframe
            has_pictures = table is not None and data.image_key in table.column_names
            most = PICTURE_SAMPLE_ROWS if has_pictures else SAMPLE_ROWS
            chosen = set(range(0, len(data_set), max(1, -(-len(data_set) // most))))
            if table is not None:
                chosen |= _first_of_sources(table) | _incomplete(table, data.prompt_key)
                chosen |= set() if config.data.filter_overlong_prompts else _longest(table, data.prompt_key)
            taken = [data_set[i] for i in sorted(chosen)]
            kept = len(taken)
            if config.data.filter_overlong_prompts and table is not None:
                data_set.filter_overlong_prompts = True
                kept = len(data_set.maybe_filter_out_long_prompts(_Rows(table[i] for i in sorted(chosen))))
    except Exception as error:  # of the user's class, or of verl's on the user's data
        blamed = "data.custom_cls.path" if is_custom else key
        lacks = isinstance(error, KeyError) and error.args == (data.prompt_key,)
        what = COLUMNS.format(data.prompt_key) if lacks and not is_custom else "correct it"
        raise refused(config, blamed, f"verl's data set fails: {first_line(error):.300}; {what}") from error
    return _Sample(key=key, rows=len(data_set), taken=taken, kept=kept, is_custom=is_custom)


def _first_of_sources(table: Any) -> set[int]:
    """Rows of a table of `datasets`; none where its sources are not known."""
    if SOURCE not in table.column_names:
        return set()
    sources = table.data.column(SOURCE)
    known = [source for source in pc.unique(sources).to_pylist() if source is not None]
    return {pc.index(sources, source).as_py() for source in known[:SAMPLE_ROWS]}


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _incomplete(table: Any, prompt_key: str) -> set[int]:
    """Of each column that every row must fill, the first row that does not."""
    found = set()
    for name in {prompt_key, SOURCE, ANSWER, AGENT_COLUMN}.intersection(table.column_names):
        column = table.data.column(name)
        if pa.types.is_struct(column.type) and column.type.get_field_index("ground_truth") >= 0:
            column = pc.struct_field(column, "ground_truth")
        lacks = pc.is_null(column)
        if _is_list(column.type):
            lacks = pc.or_(lacks, pc.equal(pc.fill_null(pc.list_value_length(column), 0), 0))
        found.add(pc.index(lacks, True).as_py())
    found |= {
        pc.index(pc.is_null(pc.struct_field(table.data.column(EXTRA), path)), True).as_py() for path in _tools_of(table)
    }
    return found - {-1}


def _tools_of(table: Any) -> list[list[str]]:
    """Where rows of a table of `datasets` have arguments for tools: paths in its column `extra_info`."""
    kind = table.data.column(EXTRA).type if EXTRA in table.column_names else pa.null()
    if not pa.types.is_struct(kind) or kind.get_field_index(TOOLS_KWARGS) < 0:
        return []
    tools = kind.field(TOOLS_KWARGS).type
    names = [field.name for field in tools] if pa.types.is_struct(tools) else []
    return [[TOOLS_KWARGS], *([TOOLS_KWARGS, name] for name in names)]


def _tool_gaps(row: dict[str, Any]) -> list[str]:
    """Tools whose arguments a row has as null, among those that its prompt offers."""
    extra = row.get(EXTRA) or {}
    given = extra.get(TOOLS_KWARGS, {})
    if given is None:
        return [TOOLS_KWARGS]
    selected = extra.get("tool_selection") or given
    gaps = [name for name, value in given.items() if value is None and name in selected]
    inner = [
        f"{name}.create_kwargs" for name, value in given.items() if value and value.get("create_kwargs", ()) is None
    ]
    return sorted(gaps + inner)


def _longest(table: Any, prompt_key: str) -> set[int]:
    """The prompts with most bytes of text; none where content is no text."""
    lengths = []
    for messages in table.data.column(prompt_key).chunks:
        kind = messages.type
        at = (
            kind.value_type.get_field_index("content") if _is_list(kind) and pa.types.is_struct(kind.value_type) else -1
        )
        if at < 0 or not _is_text(kind.value_type[at].type):
            return set()
        content = pc.struct_field(pc.list_flatten(messages), "content")
        size = pc.fill_null(pc.binary_length(content), 0).to_numpy()
        lengths.append(np.bincount(pc.list_parent_indices(messages).to_numpy(), size, minlength=len(messages)))
    return set(np.concatenate(lengths).argsort()[-_LONGEST:].tolist()) if lengths else set()


def _why_unseen(kinds: Collection[str]) -> str:
    """What to do about items that this copy's codec does not serve."""
    from ...rollout.codec import ABSENT, codec

    return ABSENT if "image" in kinds and "image" not in codec().kinds else UNSEEN


def _check_row(config: DictConfig, sample: _Sample, row: dict[str, Any], prompts: Prompts) -> None:
    """A row as verl's data set gives it holds text, what else this copy can show to the model, what verl's reward
    managers read, and no name that is taken.
    """
    from ...rollout.codec import codec, items_of
    from ...rollout.manager import TAKEN_NAMES, make_group

    data, loop = config.data, row.get(AGENT_COLUMN, PLAIN_LOOP)
    media = [name for name in (data.image_key, data.video_key, data.audio_key, "multi_modal_data") if name in row]
    messages = row.get("raw_prompt", [])
    if isinstance(messages, str) or any(isinstance(one, str) for one in messages):
        what = f"has {messages!r:.80} where messages are expected"
        raise refused(config, sample.blamed, f"{what}: {COLUMNS.format(data.prompt_key)}")
    media += sorted({item["type"] for item in items_of(messages)}.difference(codec().kinds))
    if media or not all(
        isinstance(one, dict) and isinstance(one.get("content", ...), str | list | None) for one in messages
    ):
        raise refused(config, sample.blamed, f"has {media or 'content that is not text'}: {_why_unseen(media)}")
    if not len(messages) or not (_is_scorable(config, row) or _scores_itself(config, row, prompts)):
        what = ", ".join(f"{name}={row.get(name)!r:.80}" for name in ("raw_prompt", SOURCE, ANSWER))
        remedy = "verl reads a list of messages, a text, and {'ground_truth': ...}; prepare the data as verl wants it"
        raise refused(config, sample.blamed, f"has a row with {what}: {remedy}")
    if not isinstance(loop, str):
        remedy = "name one in every row of every file, or in none"
        raise refused(config, sample.blamed, f"has a row with {AGENT_COLUMN}={loop}: {_shown(row)}; {remedy}")
    check_name(config, f"{sample.blamed}, column {AGENT_COLUMN}", loop)
    used = row.get(AGENT_COLUMN, prompts.default_loop)
    cls = partial(loop_class, config, used)
    codec().check_row(config, sample.blamed, row, model=prompts.model, loop=used, loop_class=cls)
    if used == TOOL_LOOP and (gaps := _tool_gaps(row)):
        what = f"has null for {', '.join(gaps)} in {EXTRA}.{TOOLS_KWARGS}: {_shown(row)}"
        remedy = "give each row a value for each tool, as Parquet makes null of what one leaves out"
        raise refused(config, sample.blamed, f"{what}; {remedy}, or leave the tool out of its tool_selection")
    if taken := sorted(row.keys() & {*UNSUPPORTED_COLUMNS, *TAKEN_NAMES}):
        raise refused(config, sample.blamed, f"has the columns {taken}, which verl or this recipe uses; rename them")
    make_group(row | {"uid": ""}, n=1, step=0)


def _is_scorable(config: DictConfig, row: dict[str, Any]) -> bool:
    """Whether the row has what verl's reward managers read."""
    answer = row.get(ANSWER)
    truth = answer.get("ground_truth", ...) if isinstance(answer, dict) else ...
    has_truth = truth is not ... and (truth is not None or config.reward.reward_model.enable)
    return isinstance(row.get(SOURCE), str) and has_truth


def _loop_of(row: dict[str, Any], prompts: Prompts) -> str:
    return str(row.get(AGENT_COLUMN, prompts.default_loop))


def _scores_itself(config: DictConfig, row: dict[str, Any], prompts: Prompts) -> bool:
    """Whether the row may lack that. verl's validation and its dumps ask a ground truth's column for its keys: it has
    none, or each row one.
    """
    is_told = isinstance(row.get(ANSWER, {}), dict) and isinstance(row.get(SOURCE, ""), str)
    return is_told and may_score_itself(config, _loop_of(row, prompts))


def _shown(row: dict[str, Any]) -> str:
    from ...rollout.codec import codec

    return f"{codec().strip(row)['raw_prompt'][-1]['content']!r:.80}"


def _check_lengths(
    config: DictConfig, sample: _Sample, prompts: Prompts, *, available: int, wanted: int, unit: str
) -> str:
    """Render the sample's prompts. What verl keeps must fit, and be enough.

    Args:
        available: prompts that verl reads [count].
        wanted: prompts that must remain [count].

    Returns:
        What is left out, or not looked at, in words.
    """
    rows, kept = sample.taken, sample.kept
    limit_tok: int = config.data.max_prompt_length
    lengths_tok, failure = [], ""
    longest: tuple[int, str] = (0, "")
    for row in rows:
        try:
            with contained():
                lengths_tok.append(prompts.count_tok(row))
        except Exception as error:  # the template is the model's own code
            failure = failure or f"the chat template fails on {_shown(row)}: {first_line(error)}"
        else:
            longest = max(longest, (lengths_tok[-1], _shown(row)))
    if sum(length_tok <= limit_tok for length_tok in lengths_tok) < kept:
        if failure:
            raise refused(config, sample.blamed, f"{failure}; correct the data, or the template")
        filters = config.data.filter_overlong_prompts
        leave_out = "leave it out of the data" if filters else "set data.filter_overlong_prompts=True"
        raise refused(
            config,
            _LIMIT,
            f"{sample.key} has a prompt of {longest[0]} {prompts.unit}, and verl would cut off its front: "
            f"{longest[1]}; raise the limit, or {leave_out}",
        )
    if kept == len(rows):
        if config.data.filter_overlong_prompts or len(rows) == sample.rows:
            return ""
        return f"{sample.key}: {len(rows)} of {sample.rows:,} prompts are checked for length"
    about = "" if len(rows) == sample.rows else "about "
    remaining = available * kept / len(rows)
    why = f"longer than {_LIMIT}={limit_tok}, up to {longest[0]} {prompts.unit}"
    if failure:
        why += f"; {len(rows) - len(lengths_tok)} of {len(rows)} because {failure}"
    # By three standard deviations: a sample must not refuse what is enough.
    if remaining + (3 * available * math.sqrt(kept + 1) / len(rows) if about else 0) < wanted:
        place = -(-wanted * len(rows) // available) - 1
        remedy = f"set it to {sorted(lengths_tok)[place]} at least" if place < len(lengths_tok) else "correct the data"
        raise refused(
            config,
            _LIMIT,
            f"verl keeps only {about}{remaining:.0f} of the {available} prompts in {sample.key}, fewer than {unit}; "
            f"others are {why}; {remedy}",
        )
    return f"{about}{available - round(remaining):,} of {available:,} prompts in {sample.key} are left out: {why}"
