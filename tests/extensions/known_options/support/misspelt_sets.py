"""Sets of options of the recipe and of verl, drawn by chance: all with their own values but one, one key misspelt."""

import random
import string
from dataclasses import dataclass

from recipe.async_dapo.extensions.known_options import keys

VALUES = ["null", "-1", "0", "1", "3", "0.5", "nan", ".inf", "True", "some", "''", "[]", "{}", "auto", "[a,1]", "{a:1}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MisspeltSet:
    """`wrong` is the misspelt key; `overrides` have it."""

    wrong: str
    overrides: list[str]

    def is_named(self, error: object) -> bool:
        """Whether an error blames the misspelt key."""
        key = str(error).partition("=")[0]
        return key == self.wrong or key.startswith(f"{self.wrong}.")


def misspelt_set(rng: random.Random) -> MisspeltSet:
    engine = rng.choice(keys.ENGINES)
    root = keys.known_keys(engine)
    values = {key: value for key, value in keys.options_of(keys.default_config(engine)) if "_target_" not in key}
    while True:
        *chosen, original, replaced = rng.sample(sorted(values), rng.randint(3, 12))
        wrong = misspelt(original, rng)
        if not keys.find(root, wrong) and all(wrong.split(".")):
            break
    texts = [f"{rng.choice(['', '++'])}{key}={written(values[key])}" for key in chosen]
    texts += [f"++{replaced}={rng.choice(VALUES)}", f"{rng.choice(['', '+', '++'])}{wrong}={written(values[original])}"]
    rng.shuffle(texts)
    return MisspeltSet(wrong=wrong, overrides=[f"model_engine={engine}", *texts])


def misspelt(key: str, rng: random.Random) -> str:
    """One letter is missing, doubled, swapped with the next, or another one."""
    at = rng.choice([place for place, letter in enumerate(key) if letter.isalpha()])
    return rng.choice(
        [
            key[:at] + key[at + 1 :],
            key[: at + 1] + key[at:],
            key[:at] + key[at : at + 2][::-1] + key[at + 2 :],
            key[:at] + rng.choice(string.ascii_lowercase) + key[at + 1 :],
        ]
    )


def written(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    return "null" if value is None else str(value)
