"""What drafts cost and save: how long one should be, and whether an engine should draft at all.

A step costs what it costs without drafts, and something for each token that is verified. A token that is accepted
saves a part of another step. So a draft goes on as long as the probability that all of it is accepted, times what a
token takes at this load, is above the price of verifying one; where not even its first token is worth it, there is
none. Prices and probabilities are measured as the engine goes.

That rule does not see what drafting costs in every step: the time of the drafter, and an engine that verifies. So some
steps verify nothing. Where the others yield fewer tokens a second than these do without the drafter's own time, the
drafter rests for a while, and for twice as long when that comes out again.
"""

from dataclasses import dataclass, field

MOST_DRAFT_TOK = 7  # with the one that is sampled anyway, eight a step
LEVELS = (3, 5, 8, 16, 32)  # tokens that agreed before a draft, in classes
_FIRST_GUESS = (0.4, 0.5, 0.6, 0.8, 0.9)  # that a token of such a draft is accepted
_GUESS_WEIGHT, _WINDOW = 4.0, 100.0  # observations


class Acceptance:
    """How probable it is that a token of a draft is accepted, given that those before it were: a moving mean by the
    length of the match and the position in the draft.
    """

    def __init__(self) -> None:
        self._hits = [[_GUESS_WEIGHT * guess] * MOST_DRAFT_TOK for guess in _FIRST_GUESS]
        self._tries = [[_GUESS_WEIGHT] * MOST_DRAFT_TOK for _ in _FIRST_GUESS]

    def note(self, level: int, drafted_tok: int, accepted_tok: int, times: int) -> None:
        hits, tries = self._hits[level], self._tries[level]
        for position in range(min(accepted_tok + 1, drafted_tok)):
            tries[position] += times
            if position < accepted_tok:
                hits[position] += times
            if tries[position] > _WINDOW:
                hits[position] /= 2
                tries[position] /= 2

    def lengths(self, least_probability: float) -> list[int]:
        """For each level, the tokens of a draft that are all accepted with at least this probability."""
        return [self._length(level, least_probability) for level in range(len(LEVELS))]

    def _length(self, level: int, least_probability: float) -> int:
        probability = 1.0
        for position, (hits, tries) in enumerate(zip(self._hits[level], self._tries[level], strict=True)):
            probability *= hits / tries
            if probability < least_probability:
                return position
        return MOST_DRAFT_TOK


_RATE = 0.05  # of moving means
_FORGET = 0.995  # a step, of what tells the price of a token
_LEAST_PRICE, _PRICE_GUESS, _MOST_PRICE = 0.005, 0.1, 1.0  # of verifying a token, over what a row takes of a step
_GUESS_DRAFTED2 = 32.0  # the guess counts like drafts that vary by so many tokens squared, times the rows
_PAUSE = 2.0  # a step that took so many times the mean was not one: the engine waited


MARGIN = 1.25
TRIAL_SHARE = 0.005  # of the time goes to drafts that do not look worth it, to see whether that has changed


@dataclass(slots=True)
class _Load:
    """Moving means of the steps with about as many rows."""

    step_s: float
    drafted_tok: float
    rows: float
    tokens: float


class Price:
    """What it costs to verify a token and what it saves to have one accepted, from an engine's own step times.

    Steps are compared with others of as many rows: how much longer do those with more drafts take?
    """

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}
        self._drafted2 = self._drafted_s = 0.0
        self._load: _Load | None = None

    def note(self, step_s: float, *, rows: int, drafted_tok: int, tokens: int) -> None:
        """A step that decoded, and did nothing else."""
        key = rows.bit_length()
        load = self._loads.get(key)
        if load is None:
            self._load = self._loads[key] = _Load(step_s, drafted_tok, rows, tokens)
            return
        self._load = load
        step_s = min(step_s, _PAUSE * load.step_s)
        expected_s = load.step_s * (1 + (rows / load.rows - 1) / 2)  # half of a step grows with its rows, about
        drafted = drafted_tok - load.drafted_tok
        self._drafted2 = _FORGET * self._drafted2 + drafted**2
        self._drafted_s = _FORGET * self._drafted_s + drafted * (step_s - expected_s)
        load.step_s += _RATE * (step_s - load.step_s)
        load.drafted_tok += _RATE * drafted
        load.rows += _RATE * (rows - load.rows)
        load.tokens += _RATE * (tokens - load.tokens)

    @property
    def step_s(self) -> float:
        return 0.0 if self._load is None else self._load.step_s

    @property
    def token_s(self) -> float:
        """To verify one more token [s]."""
        return self._token_s(_PRICE_GUESS)

    @property
    def most_token_s(self) -> float:
        """The same if what has not been seen is as dear as it can be: a token for a row [s]."""
        return self._token_s(_MOST_PRICE)

    def _token_s(self, guess: float) -> float:
        if self._load is None:
            return 0.0
        row_s = self._load.step_s / self._load.rows
        weight = _GUESS_DRAFTED2 * self._load.rows
        slope_s = (self._drafted_s + weight * guess * row_s) / (self._drafted2 + weight)
        return max(slope_s, _LEAST_PRICE * row_s)

    @property
    def least_probability(self) -> float:
        """With which a drafted token has to be accepted to be worth its price, with a margin for what is not seen."""
        if self._load is None:
            return 1.0
        saved_s = self._load.step_s / max(1.0, self._load.tokens)
        return MARGIN * self.token_s / saved_s


CONTROLS = 32  # steps that verify nothing, until they are compared with the others
TRIED_EVERY, WATCHED_EVERY = 4, 32  # steps, of which one is a control: while it is open whether drafts pay; later on
FIRST_REST, LONGEST_REST = 1024, 32768  # steps
NAP_STEPS = 64  # of a rest, between two looks at the load: two have to say that drafts pay, as waking up takes time
_LONG_STEP = 4.0  # a step with a prompt may take as many times the mean; where it takes longer, the engine waited


@dataclass(slots=True)
class _Yield:
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def note(self, step_s: float, tokens: int) -> None:
        self.steps += 1
        self.seconds += step_s
        self.tokens += tokens

    def is_less_than(self, other: "_Yield") -> bool:
        """Of tokens a second."""
        return self.tokens * other.seconds < other.tokens * self.seconds


@dataclass(slots=True)
class _Trial:
    """Steps with about as many rows: those with drafts beside those without, and what came out."""

    mean_s: float
    drafting: _Yield = field(default_factory=_Yield)
    control: _Yield = field(default_factory=_Yield)
    steps: int = 0
    pays: bool = False  # at the last verdict
    rest_steps: int = 0  # that are left
    next_rest: int = FIRST_REST  # where it does not pay again

    def end(self) -> None:
        """With a verdict; the next one begins."""
        self.pays = not self.drafting.is_less_than(self.control)
        if self.pays:
            self.next_rest = FIRST_REST
        else:
            self.rest_steps, self.next_rest = self.next_rest, min(2 * self.next_rest, LONGEST_REST)
        self.drafting, self.control = _Yield(), _Yield()


class Worth:
    """Whether an engine yields more tokens with a drafter than without one: a trial that goes on, at each load."""

    def __init__(self) -> None:
        self._trials: dict[int, _Trial] = {}
        self._nap_steps = 0
        self._is_asleep = self._has_paid = False  # the second: at the last look

    def note(self, step_s: float, *, rows: int, tokens: int, drafter_s: float, is_control: bool) -> None:
        """A step, with prompts or without.

        Args:
            rows: of the batch, those that get no drafts too.
            tokens: that they have sampled.
            drafter_s: of the step, which an engine without drafts does not take.
            is_control: it has verified nothing, on purpose.
        """
        trial = self._trials.setdefault(rows.bit_length(), _Trial(step_s))
        step_s = min(step_s, _LONG_STEP * trial.mean_s)
        trial.mean_s += _RATE * (step_s - trial.mean_s)
        if is_control:
            trial.control.note(step_s - drafter_s, tokens)
        else:
            trial.drafting.note(step_s, tokens)
        if trial.control.steps >= CONTROLS:
            trial.end()

    def is_control(self, rows: int) -> bool:
        """Whether the next step is to verify nothing, as far as it has so many rows; asked once for each step."""
        trial = self._trials.get(rows.bit_length())
        if trial is None:
            return False
        trial.steps += 1
        return trial.steps % (WATCHED_EVERY if trial.pays else TRIED_EVERY) == 0

    def rests(self, rows: int) -> bool:
        """Whether a step with so many rows is better off without a drafter; asked once for each step."""
        if self._nap_steps:
            self._nap_steps -= 1
            return True
        trial = self._trials.get(rows.bit_length())
        pays = trial is None or trial.rest_steps <= 0
        is_awake = pays and (not self._is_asleep or self._has_paid)
        self._is_asleep, self._has_paid = not is_awake, pays
        if is_awake:
            return False
        self._nap_steps = NAP_STEPS - 1
        if trial is not None and not pays:
            trial.rest_steps -= NAP_STEPS
        return True
