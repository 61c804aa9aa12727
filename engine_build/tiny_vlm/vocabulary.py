"""The closed word lists the generator draws from, and the table of image labels.

The order of every list is part of the data: a seed picks by position, so reordering one changes
every sample. The label table numbers what can be seen at a point of an image; a trainer may ask
the vision tower to predict it.
"""

from collections.abc import Mapping
from types import MappingProxyType

Rgb = tuple[int, int, int]

COLORS: Mapping[str, Rgb] = MappingProxyType(
    {
        "red": (220, 40, 40),
        "green": (40, 160, 60),
        "blue": (40, 80, 220),
        "yellow": (240, 210, 40),
        "purple": (140, 50, 170),
        "orange": (245, 140, 30),
        "black": (25, 25, 25),
        "pink": (245, 150, 190),
        "cyan": (60, 200, 215),
        "brown": (125, 75, 35),
    }
)
COLOR_NAMES = tuple(COLORS)

BACKGROUNDS: Mapping[str, Rgb] = MappingProxyType(
    {
        "white": (252, 252, 252),
        "gray": (190, 190, 190),
        "cream": (250, 238, 205),
        "mint": (205, 240, 215),
    }
)

SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross", "ring", "heart")

POSITIONS = (
    "top left",
    "top center",
    "top right",
    "middle left",
    "center",
    "middle right",
    "bottom left",
    "bottom center",
    "bottom right",
)
"""Names of the cells of a 3 by 3 grid, row by row."""

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ORDINALS = ("first", "second", "third", "fourth", "fifth")

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
CHART_TITLES = ("Sales", "Rain", "Books", "Visits", "Cars", "Score", "Goals", "Trees")

SIGN_WORDS = tuple(
    """OPEN CLOSED SALE EXIT STOP TAXI BANK CAFE HOTEL PARK BOOKS MUSIC FRESH BREAD PIZZA COFFEE
    METRO GATE ROOM SHOP BUS ZOO MILK RIVER NORTH SOUTH EAST WEST QUIET JAZZ FILM GARDEN VOTE KIDS
    MENU TICKET LEVEL WATER POWER QUEEN""".split()
)

STORES = ("LUNA", "MAXI", "ORBIT", "GREEN", "DELTA", "KIWI", "NOVA", "PIXEL", "TERRA", "ZEBRA")
ITEMS = tuple("milk bread tea eggs rice soap apple juice corn fish cake salt".split())

PEOPLE = tuple("Ann Ben Cara Dan Eva Finn Gus Hana Ivan Judy Kim Leo".split())
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Paris", "Delhi", "Quito", "Tokyo")
JOBS = ("cook", "nurse", "pilot", "judge", "actor", "baker")

DIAGRAM_PARTS = ("N", "S", "lit", "unlit", "gap", "closed", "arrowL", "arrowR", "pan")
MAX_LABELLED_VALUE = 10

LABELS: tuple[str, ...] = (
    *(f"ch:{chr(code)}" for code in range(33, 127)),
    *(f"co:{name}" for name in COLOR_NAMES),
    *(f"sh:{name}" for name in SHAPES),
    "sz:small",
    "sz:large",
    *(f"v:{value}" for value in range(MAX_LABELLED_VALUE + 1)),
    *(f"d:{part}" for part in DIAGRAM_PARTS),
)
"""What an annotation may say: a character, colour, shape, size, value or diagram part."""

LABEL_IDS: Mapping[str, int] = MappingProxyType({name: i for i, name in enumerate(LABELS)})
"""Label to its row in the label table."""
