"""Drafts from siblings: what the other answers to a prompt say next, and how much of it is worth verifying.

An engine verifies several tokens of a sequence in one step for little more than the price of one. The n answers to a
prompt repeat each other, so where an answer has come to words that another one has, too, that one's continuation is a
draft. Only time is at stake: the engine accepts or rejects each token so that what is sampled keeps its distribution.

    tokens of a request -> its answer -> index of the group -> match -> how long (`draft_price.py`) -> draft

Names of requests tell an engine which answers belong to one prompt.
"""

import sys
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .draft_price import LEVELS, MOST_DRAFT_TOK, TRIAL_SHARE, Acceptance, Price, Worth

GRAMS = (8, 3)  # tokens that have to agree, longest first
LIMIT_TOK = 1 << 20  # of all answers in an index: some 300 MB
EARLIER_SHARE = 0.75  # of the limit that answers of earlier visits may fill up: the rest is for those that run

_BULK_TOK = 16  # tokens are indexed in bulk, which is several times as fast as one by one
_ADDED_TOK = 64  # at a time; a step indexes so many, and two for each row
_NEVER = sys.maxsize
_AT_BITS, _TOKEN_BITS, _VOTE_BITS = 20, 24, 4
_MOST_VOTES = (1 << _VOTE_BITS) - 1
_TOKEN_FIELD, _AT_MASK = ((1 << _TOKEN_BITS) - 1) << _VOTE_BITS, (1 << _AT_BITS) - 1


@dataclass(frozen=True, slots=True)
class RequestName:
    """What a request's name tells the engine: whose answer it generates, and where that begins.

    Attributes:
        answer: of the group, the same for all requests that continue it.
        prompt_tok: context before the answer; a request that continues one has more.
    """

    group: str
    answer: str
    prompt_tok: int

    def prefix(self) -> str:
        """A name begins so, and goes on with what no other request has."""
        return f"{self.group}.{self.answer}.{self.prompt_tok}."

    @classmethod
    def parse(cls, name: str) -> "RequestName | None":
        """None for a request that says nothing of the kind."""
        group, *rest = name.rsplit(".", 3)
        if len(rest) != 3 or not group or not rest[1].isdecimal():
            return None
        return cls(group, rest[0], int(rest[1]))


@dataclass(slots=True, eq=False)
class Answer:
    tokens: list[int] = field(default_factory=list)
    base: int = 0  # of its positions in the index of its group
    indexed_tok: int = 0
    due_tok: int = _BULK_TOK  # length at which some are to be indexed; `_NEVER` while it waits for that


class GroupIndex:
    """The answers to one prompt, found by their last 8 or 3 tokens: what most of them say next there.

    For each run of tokens the index keeps one position behind it, and votes: a run that goes on alike adds one, another
    one takes one away, and the position changes when none is left. So what most answers say wins, in constant time.
    """

    def __init__(self) -> None:
        self.users = 0  # requests that are in the engine
        self._answers: list[Answer] = []
        self._by_key: dict[str, Answer] = {}
        self._entries: dict[int, int] = {}  # hash of a run -> position, token there, votes

    @property
    def size_tok(self) -> int:
        return sum(len(answer.tokens) for answer in self._answers)

    def answer(self, key: str, tokens: Sequence[int]) -> Answer:
        """The answer that a request generates, which begins with these tokens. What is known of it already is not
        added again; what was lost, and is generated anew, stays beside it as one more answer. Nothing is found behind
        tokens before they are indexed.
        """
        answer = self._by_key.get(key)
        known_tok = 0 if answer is None else len(answer.tokens)
        if answer is None or answer.tokens != list(tokens[:known_tok]):
            answer, known_tok = Answer(base=len(self._answers) << _AT_BITS), 0
            self._answers.append(answer)
            self._by_key[key] = answer
        answer.tokens.extend(tokens[known_tok:])
        return answer

    def find(self, answer: Answer) -> tuple[Answer, int, int] | None:
        """Where the index goes on from the end of an answer: an answer, a position in it, the tokens that agree."""
        tokens, entries = answer.tokens, self._entries
        if len(tokens) < GRAMS[-1] or (held := entries.get(hash(tuple(tokens[-GRAMS[-1] :])))) is None:
            return None  # longer runs end alike
        for length in GRAMS:
            if len(tokens) >= length and (longer := entries.get(hash(tuple(tokens[-length:])))) is not None:
                held = longer
                break
        place = held >> (_TOKEN_BITS + _VOTE_BITS)
        source, at = self._answers[place >> _AT_BITS], place & _AT_MASK
        more = LEVELS[1]
        if length < more <= at and source.tokens[at - more : at] == tokens[-more:]:
            length = more
        return source, at, length

    def add(self, answer: Answer, most_tok: int) -> int:
        """Index so many more of an answer's tokens at most. Returns how many there were."""
        tokens, entries, setdefault = answer.tokens, self._entries, self._entries.setdefault
        stop = min(len(tokens), answer.indexed_tok + most_tok)
        first, base = min(stop, max(GRAMS[-1], answer.indexed_tok)), answer.base
        places = [((base + at) << _TOKEN_BITS | tokens[at]) << _VOTE_BITS for at in range(first, stop)]
        for length in GRAMS:
            start = max(length, first)
            if start >= stop:
                continue
            runs = zip(*(tokens[start - length + k : stop - length + k] for k in range(length)), strict=True)
            for key, place in zip(map(hash, runs), places[start - first :], strict=True):
                held = setdefault(key, place)
                if held is place:
                    continue
                if not (held ^ place) & _TOKEN_FIELD:  # the same token
                    if held & _MOST_VOTES != _MOST_VOTES:
                        entries[key] = held + 1
                else:
                    entries[key] = held - 1 if held & _MOST_VOTES else place
        added_tok, answer.indexed_tok = stop - answer.indexed_tok, stop
        return added_tok


class Groups:
    """The indexes of an engine's groups, together no larger than a limit: those that nobody uses go, oldest first. An
    index that nobody can make room for grows no more.
    """

    def __init__(self, limit_tok: int = LIMIT_TOK) -> None:
        self._limit_tok = limit_tok
        self._used: dict[str, GroupIndex] = {}
        self._idle: OrderedDict[str, GroupIndex] = OrderedDict()
        self.size_tok = 0

    def use(self, name: str) -> GroupIndex:
        index = self._used.get(name) or self._idle.pop(name, None) or GroupIndex()
        self._used[name] = index
        index.users += 1
        return index

    def release(self, name: str) -> None:
        index = self._used[name]
        index.users -= 1
        if not index.users:
            self._idle[name] = self._used.pop(name)

    def has_room(self, more_tok: int, share: float = 1.0) -> bool:
        """
        Args:
            share: of the limit that may be taken with them [0-1].
        """
        limit_tok = share * self._limit_tok
        while self.size_tok + more_tok > limit_tok and self._idle:
            self.size_tok -= self._idle.popitem(last=False)[1].size_tok
        return self.size_tok + more_tok <= limit_tok


@dataclass(slots=True, eq=False)
class _Row:
    """A request in the engine, and the answer it copies from."""

    name: RequestName
    index: GroupIndex
    answer: Answer
    source: Answer | None = None
    at: int = 0  # in the source, of what it may say next
    matched_tok: int = 0
    drafted_tok: int = 0
    level: int = 0


class Drafter:
    """Drafts for the requests of an engine, step by step.

    Args:
        limit_tok: of all answers that are kept.
    """

    def __init__(self, limit_tok: int = LIMIT_TOK) -> None:
        self._groups = Groups(limit_tok)
        self._rows: dict[str, _Row] = {}
        self.acceptance, self.price, self.worth = Acceptance(), Price(), Worth()
        self._trial_s = 0.0  # saved up for trials
        self._last_s: float | None = None
        self._outcomes: list[tuple[int, int, int]] = []
        self._is_plain = True  # the step has decoded, and nothing else
        self._is_control = False
        self._due: deque[tuple[GroupIndex, Answer]] = deque()
        self._earlier_due: deque[tuple[GroupIndex, Answer]] = deque()  # when nothing else is

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size_tok(self) -> int:
        return self._groups.size_tok

    def begin(self, request_id: str, name: RequestName, tokens: Sequence[int]) -> None:
        """A request has sampled its first tokens.

        Args:
            tokens: of the answer that it continues.
        """
        self._is_plain = False
        index = self._groups.use(name.group)
        before_tok = index.size_tok
        kept = tokens if self._groups.has_room(len(tokens)) else []
        answer = index.answer(name.answer, kept)
        self._groups.size_tok += index.size_tok - before_tok
        self._rows[request_id] = _Row(name, index, answer)
        if answer.due_tok != _NEVER:
            self._note_due(index, answer, self._due)

    def learn(self, group: str, answers: Sequence[Sequence[int]]) -> int:
        """What was answered to a group's prompt at an earlier visit, as far as there is room beside what runs.

        Returns:
            How many of them found none.
        """
        index, refused = self._groups.use(group), 0
        for number, tokens in enumerate(answers):
            if not self._groups.has_room(len(tokens), EARLIER_SHARE):
                refused += 1
                continue
            before_tok = index.size_tok
            answer = index.answer(f"earlier {number}", tokens)
            self._groups.size_tok += index.size_tok - before_tok
            if answer.due_tok != _NEVER:
                self._note_due(index, answer, self._earlier_due)
        self._groups.release(group)
        return refused

    def keep_only(self, request_ids: set[str]) -> None:
        """All others have left the engine; what they said stays, as long as there is room."""
        for request_id in self._rows.keys() - request_ids:
            self._groups.release(self._rows.pop(request_id).name.group)

    def rests(self, rows: int) -> bool:
        """Whether drafts do not pay with so many requests. Then a step is not for it, and it forgets who runs: all have
        to begin again when it is awake. Asked once for each step.
        """
        if not self.worth.rests(rows):
            return False
        if self._last_s is not None:
            self.keep_only(set())
            self._outcomes.clear()
            self._last_s, self._is_control = None, False
        return True

    def step(
        self, request_ids: Sequence[str], sampled: Sequence[list[int]], now_s: float, drafter_s: float
    ) -> list[list[int]]:
        """Take what has been sampled, and draft for the next step.

        Args:
            sampled: tokens of each request; none where its prompt is not yet computed.
            drafter_s: of the step that ends, for the last call and all that was done for it.

        Returns:
            For each request; empty where there is no draft to be had, or it does not pay, or the request is not known.
        """
        rows = [row if tokens else None for row, tokens in zip(map(self._rows.get, request_ids), sampled, strict=True)]
        if not all(sampled):
            self._is_plain = False
        self._take(rows, sampled)
        known = len(rows) - rows.count(None)
        self._end_step(sampled, known, now_s, drafter_s)
        self._add_due(_ADDED_TOK + 2 * known)
        self._is_control = self.worth.is_control(len(sampled))
        if self._is_control:
            return [[] for _ in rows]
        lengths = self.acceptance.lengths(self.price.least_probability)
        if not any(lengths) and not self._can_try:
            return [[] for _ in rows]
        return [[] if row is None else self._draft(row, lengths) for row in rows]

    def _take(self, rows: Sequence[_Row | None], sampled: Sequence[list[int]]) -> None:
        outcomes, due = self._outcomes, self._due
        has_room, taken_tok = self._groups.has_room(sum(map(len, sampled))), 0
        for row, tokens in zip(rows, sampled, strict=True):
            if row is None:
                continue
            count, source = len(tokens), row.source
            if row.drafted_tok:
                outcomes.append((row.level, row.drafted_tok, count - 1))
                row.drafted_tok = 0
            if source is not None:
                at = row.at
                if source.tokens[at : at + count] == tokens and has_room:
                    row.at = at + count
                    row.matched_tok += count
                else:
                    row.source = None
            if has_room:
                answer = row.answer
                answer.tokens += tokens
                taken_tok += count
                if len(answer.tokens) >= answer.due_tok:
                    answer.due_tok = _NEVER
                    due.append((row.index, answer))
        self._groups.size_tok += taken_tok

    def _draft(self, row: _Row, lengths: Sequence[int]) -> list[int]:
        source = row.source
        if source is None or row.at >= len(source.tokens):
            found = row.index.find(row.answer)
            if found is None:
                row.source = None
                return []
            source, row.at, row.matched_tok = found
            row.source = source
        row.level = level = bisect_right(LEVELS, row.matched_tok) - 1
        length = lengths[level]
        if not length:
            if not self._can_try:
                return []
            self._trial_s -= self._trial_cost_s
            length = MOST_DRAFT_TOK
        drafted = source.tokens[row.at : row.at + length]
        row.drafted_tok = len(drafted)
        return drafted

    def _note_due(self, index: GroupIndex, answer: Answer, due: deque[tuple[GroupIndex, Answer]]) -> None:
        answer.due_tok = answer.indexed_tok + _BULK_TOK
        if len(answer.tokens) >= answer.due_tok:
            answer.due_tok = _NEVER
            due.append((index, answer))

    def _add_due(self, most_tok: int) -> None:
        """Index what has waited longest; a long answer that is continued takes several steps."""
        for due in (self._due, self._earlier_due):
            while due and most_tok > 0:
                index, answer = due.popleft()
                most_tok -= index.add(answer, _ADDED_TOK)
                self._note_due(index, answer, due)

    @property
    def _trial_cost_s(self) -> float:
        return MOST_DRAFT_TOK * self.price.most_token_s

    @property
    def _can_try(self) -> bool:
        return self._trial_s > 0 and self._trial_s >= self._trial_cost_s

    def _end_step(self, sampled: Sequence[list[int]], known: int, now_s: float, drafter_s: float) -> None:
        began_s, self._last_s = self._last_s, now_s
        if began_s is not None and known:
            step_s, tokens = now_s - began_s, sum(map(len, sampled))
            self.worth.note(step_s, rows=len(sampled), tokens=tokens, drafter_s=drafter_s, is_control=self._is_control)
            if self._is_plain:
                self._note_price(step_s, known)
        for (level, drafted, accepted), times in Counter(self._outcomes).items():
            self.acceptance.note(level, drafted, accepted, times)
        self._outcomes.clear()
        self._is_plain = True

    def _note_price(self, step_s: float, rows: int) -> None:
        drafted_tok = sum(drafted for _, drafted, _ in self._outcomes)
        tokens = rows + sum(accepted for _, _, accepted in self._outcomes)
        self.price.note(step_s, rows=rows, drafted_tok=drafted_tok, tokens=tokens)
        saved_s = self._trial_s + TRIAL_SHARE * self.price.step_s
        self._trial_s = min(saved_s, 2 * self._trial_cost_s)

    def note_prefill(self) -> None:
        """The step that ends has computed a prompt, too: its time says nothing of drafts."""
        self._is_plain = False
