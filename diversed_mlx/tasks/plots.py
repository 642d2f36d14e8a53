"""The plots that arithmetic problems tell: what happens, in several ways to say it, and the steps that answer it.

In a story A, B, C are names, x and y things, and a to d numbers. A step's operands are such numbers, or the results
of earlier steps by their place: 1, 2.
"""

from dataclasses import dataclass

NAMES = (
    "Tom", "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kim", "Leo", "Mia",
    "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Uma", "Victor", "Wendy", "Yusuf", "Zoe", "Amir", "Bella", "Carlos",
    "Dina", "Erik", "Fiona", "George", "Hannah", "Ivan", "Julia", "Karim",
)  # fmt: skip
THINGS = (
    "apples", "pens", "books", "cards", "marbles", "stamps", "cookies", "shells", "flowers", "coins", "balloons",
    "stickers", "eggs", "oranges", "pencils", "buttons", "toys", "plums", "candles", "ribbons", "bricks", "nuts",
    "lemons", "cups",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One calculation: a number or an earlier result, +, - or *, another, and what the result is."""

    left: str
    operator: str
    right: str
    what: str


@dataclass(frozen=True)
class Plot:
    """A family's plot: for each sentence the ways to say it, then the steps."""

    family: str
    story: tuple[tuple[str, ...], ...]
    steps: tuple[Step, ...]


def _plot(family: str, *lines: str) -> Plot:
    """Read a plot: lines of sentences with `|` between the ways to say one, and `> a + b: what` for a step."""
    story = tuple(tuple(way.strip() for way in line.split("|")) for line in lines if not line.startswith(">"))
    steps = []
    for line in lines:
        if line.startswith(">"):
            calculation, what = line[1:].split(":")
            left, operator, right = calculation.split()
            steps.append(Step(left, operator, right, what.strip()))
    return Plot(family, story, tuple(steps))


PLOTS = (
    _plot(
        "sharing",
        "{A} has {a} {x}. | There are {a} {x} on the desk of {A}. | {A} owns {a} {x}.",
        "{B} gives {A} {b} more. | Then {A} gets another {b} from {B}. | {B} adds {b} to them.",
        "{A} gives {c} of them to {C}. | {C} takes {c} of the {x}. | After this {c} of them go to {C}.",
        "How many {x} are left for {A}? | How many {x} does {A} have now?",
        "> a + b: the {x} before sharing",
        "> 1 - c: the {x} of {A}",
    ),
    _plot(
        "sharing",
        "{A} has {a} bags with {b} {x} in each. | There are {b} {x} in each of the {a} bags of {A}.",
        "{A} shares {c} {x} with {B}. | {B} gets {c} of the {x}. | {c} of the {x} go to {B}.",
        "How many {x} does {A} keep? | How many {x} stay with {A}?",
        "> a * b: the {x} in all bags",
        "> 1 - c: the {x} that {A} keeps",
    ),
    _plot(
        "sharing",
        "{A} brings {a} {x} to the party. | For the party {A} packs {a} {x}.",
        "{B} brings {b} {x}. | {b} {x} come from {B}.",
        "How many {x} can they share? | How many {x} are there for all?",
        "> a + b: the {x} to share",
    ),
    _plot(
        "sharing",
        "{A} and {B} put their {x} in a box: {a} from {A} and {b} from {B}. "
        "| A box holds {a} {x} of {A} and {b} {x} of {B}.",
        "{C} adds {c} more. | Then {C} puts in {c} {x}.",
        "They eat {d} of them. | At night {d} of them are lost.",
        "How many {x} are in the box now? | What number of {x} does the box hold at last?",
        "> a + b: the {x} of both",
        "> 1 + c: the {x} of all three",
        "> 2 - d: the {x} in the box",
    ),
    _plot(
        "shopping",
        "{A} buys {a} {x}. | At the shop {A} takes {a} {x}. | {A} wants {a} {x}.",
        "Each costs {b} dollars. | They cost {b} dollars each. | The price is {b} dollars for one.",
        "How much does {A} pay? | What is the bill of {A}?",
        "> a * b: the price of the {x}",
    ),
    _plot(
        "shopping",
        "{A} buys {a} {x} for {b} dollars each. | {A} finds {a} {x} that cost {b} dollars each.",
        "{A} also buys a hat for {c} dollars. | A hat for {c} dollars goes with them.",
        "How much does {A} spend? | What does {A} pay in all?",
        "> a * b: the price of the {x}",
        "> 1 + c: the whole bill",
    ),
    _plot(
        "shopping",
        "{A} goes to the shop with {c} dollars. | There are {c} dollars in the purse of {A}.",
        "{A} buys {a} {x} for {b} dollars each. | {A} pays for {a} {x} at {b} dollars each.",
        "How much money is left? | How many dollars does {A} have after this?",
        "> a * b: the price of the {x}",
        "> c - 1: the money that is left",
    ),
    _plot(
        "shopping",
        "{A} buys {a} {x} at {b} dollars each. | First {A} takes {a} {x} for {b} dollars each.",
        "{A} also buys {c} {y} at {d} dollars each. | Then {A} adds {c} {y} for {d} dollars each.",
        "How much is the bill? | What does {A} spend in all?",
        "> a * b: the price of the {x}",
        "> c * d: the price of the {y}",
        "> 1 + 2: the whole bill",
    ),
    _plot(
        "ages",
        "{A} is {a} years old. | {A} has just turned {a}.",
        "{B} is {b} years older. | {B} was born {b} years before {A}.",
        "How old will {B} be in {c} years? | What will be the age of {B} {c} years from now?",
        "> a + b: the age of {B} now",
        "> 1 + c: the age of {B} then",
    ),
    _plot(
        "ages",
        "{A} is {a} years old. | The age of {A} is {a}.",
        "{B} is {b} times as old. | {B} is older: {b} times the age of {A}.",
        "{C} is {c} years younger than {B}. | From {B} to {C} it is {c} years less.",
        "How old is {C}? | What is the age of {C}?",
        "> a * b: the age of {B}",
        "> 1 - c: the age of {C}",
    ),
    _plot(
        "ages",
        "{A} is {a} years old and {B} is {b} years younger. | {B} is {b} years younger than {A}, who is {a}.",
        "How old are they together? | What do their ages make together?",
        "> a - b: the age of {B}",
        "> a + 1: both ages together",
    ),
    _plot(
        "distances",
        "{A} walks {a} miles and then {b} miles. | On one day {A} walks {a} miles, on the next {b} miles.",
        "The whole way is {c} miles. | It is {c} miles to the house of {B}.",
        "How far is it still? | How many miles are left for {A}?",
        "> a + b: the miles so far",
        "> c - 1: the miles that are left",
    ),
    _plot(
        "distances",
        "{A} runs {a} miles a day for {b} days. | For {b} days {A} runs {a} miles a day.",
        "{B} runs {c} miles more than {A}. | {B} beats {A} by {c} miles.",
        "How far does {B} run? | How many miles does {B} run?",
        "> a * b: the miles of {A}",
        "> 1 + c: the miles of {B}",
    ),
    _plot(
        "distances",
        "{A} rides {a} miles on each of {b} days. | For {b} days {A} rides {a} miles a day.",
        "Then {A} rides another {c} miles. | After that come {c} miles more.",
        "The trip is {d} miles long. | The way to {B} is {d} miles.",
        "How many miles are left? | How far is it still for {A}?",
        "> a * b: the miles of these days",
        "> 1 + c: the miles so far",
        "> d - 2: the miles that are left",
    ),
    _plot(
        "time",
        "{A} reads for {a} minutes and plays for {b} minutes. | {A} plays {b} minutes after reading for {a} minutes.",
        "{A} has {c} minutes in all. | There are {c} free minutes.",
        "How many minutes remain? | How much time is left for {A}?",
        "> a + b: the minutes that are used",
        "> c - 1: the minutes that remain",
    ),
    _plot(
        "time",
        "A lesson of {A} takes {a} minutes and there are {b} lessons. | {A} has {b} lessons of {a} minutes.",
        "The breaks take {c} minutes. | There are {c} minutes of breaks.",
        "How long is {A} at school? | How many minutes is that in all?",
        "> a * b: the minutes of lessons",
        "> 1 + c: the minutes at school",
    ),
    _plot(
        "time",
        "{A} works for {a} minutes. | It takes {A} {a} minutes to clean the house.",
        "{B} needs {b} minutes less. | {B} is faster by {b} minutes.",
        "How many minutes do both need together? | What is the time of both together?",
        "> a - b: the minutes of {B}",
        "> a + 1: the minutes of both",
    ),
    _plot(
        "rates",
        "A machine makes {a} {x} an hour and runs for {b} hours. | For {b} hours a machine makes {a} {x} an hour.",
        "{c} of them break. | {A} finds that {c} are broken.",
        "How many good {x} are there? | How many {x} can {A} use?",
        "> a * b: the {x} that are made",
        "> 1 - c: the good {x}",
    ),
    _plot(
        "rates",
        "{A} packs {a} {x} an hour for {b} hours. | In each of {b} hours {A} packs {a} {x}.",
        "{B} packs {c} {x} an hour for {d} hours. | In each of {d} hours {B} packs {c} {x}.",
        "How many {x} do they pack? | How many {x} are packed in all?",
        "> a * b: the {x} of {A}",
        "> c * d: the {x} of {B}",
        "> 1 + 2: the {x} of both",
    ),
    _plot(
        "rates",
        "{A} earns {a} dollars an hour. | An hour of work pays {A} {a} dollars.",
        "{A} works for {b} hours. | Today {A} works {b} hours.",
        "How much does {A} earn? | What is the pay of {A}?",
        "> a * b: the pay of {A}",
    ),
    _plot(
        "comparisons",
        "{A} has {a} {x}. | {A} counts {a} {x}.",
        "{B} has {b} more than {A}. | {B} counts {b} more.",
        "How many {x} do they have together? | What do both have in all?",
        "> a + b: the {x} of {B}",
        "> a + 1: the {x} of both",
    ),
    _plot(
        "comparisons",
        "{A} finds {a} {x} and {B} finds {b} times as many. | {B} finds {b} times the {a} {x} that {A} finds.",
        "{C} finds {c} fewer than {B}. | {B} finds {c} more than {C}.",
        "How many {x} does {C} find? | What does {C} find?",
        "> a * b: the {x} of {B}",
        "> 1 - c: the {x} of {C}",
    ),
    _plot(
        "comparisons",
        "{A} has {a} {x}, {b} more than {B}. | The {a} {x} of {A} are {b} more than {B} has.",
        "{C} has {c} more than {B}. | {C} beats {B} by {c}.",
        "How many {x} does {C} have? | What number of {x} belongs to {C}?",
        "> a - b: the {x} of {B}",
        "> 1 + c: the {x} of {C}",
    ),
)
