"""Everyday English stories whose ending only their context can tell.

A story is four sentences and an ending. One of its sentences carries a *cue* (it rained, she gave the kite to Ben); the ending
follows from the cue, and the wrong ending follows from another cue of the same scene. Cues of other scenes stand
in between as distraction, so that the ending cannot be guessed from the last words.

Held-out stories are told apart by a hash of their context: training streams skip them, however long they run, and the
benchmark uses nothing else.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

HELD_OUT_EVERY = 8

GIRLS = ("Anna", "Mary", "Lucy", "Emma", "Kate", "Rose")
BOYS = ("Tom", "Ben", "Jack", "Sam", "Peter", "Mark")


@dataclass(frozen=True)
class Story:
    """Four sentences, the ending that follows from them and one that does not.

    Attributes:
        scene: Name of the scene whose cue decides the ending.
        sentences: The four sentences of the context, in order.
        right: The ending that follows.
        wrong: An ending of the same scene that does not follow.
    """

    scene: str
    sentences: tuple[str, str, str, str]
    right: str
    wrong: str

    @property
    def context(self) -> str:
        """The four sentences as one text."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class _Person:
    name: str
    he: str
    his: str


def _person(name: str) -> _Person:
    return _Person(name, "She", "her") if name in GIRLS else _Person(name, "He", "his")


# Scene -> value -> (ways to say the cue, ending). {he}, {his} and {his_c} are filled in.
_ASSOCIATIONS: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "weather": {
        "rain": (("It rained all day.", "Dark clouds brought heavy rain."), "{he} opened {his} umbrella."),
        "snow": (("It was snowing outside.", "Deep snow covered the street."), "{he} put on {his} warm boots."),
        "sun": (("The sun was very hot.", "It was a hot and sunny day."), "{he} sat down in the shade."),
        "wind": (("A strong wind was blowing.", "The wind blew over the hill."), "{he} held on to {his} hat."),
    },
    "place": {
        "beach": (("{he} went to the beach.", "{he} spent the morning by the sea."), "{he} came home with sand in {his} shoes."),
        "library": (("{he} went to the library.", "{he} walked to the town library."), "{he} came home with two books."),
        "bakery": (("{he} went to the bakery.", "{he} stopped at the bakery."), "{he} came home with fresh bread."),
        "farm": (("{he} went to the farm.", "{he} visited a farm."), "{he} came home with ten eggs."),
    },
    "animal": {
        "dog": (("{he} had a small dog.", "{his_c} dog was waiting."), "The animal barked at the door."),
        "cat": (("{he} had a black cat.", "{his_c} cat was asleep."), "The animal caught a mouse."),
        "horse": (("{he} had an old horse.", "{his_c} horse was hungry."), "The animal ran across the field."),
        "bird": (("{he} had a yellow bird.", "{his_c} bird was in a cage."), "The animal sang a song."),
    },
    "need": {
        "thirsty": (("{he} was very thirsty.", "{he} needed something to drink."), "{he} drank a glass of water."),
        "hungry": (("{he} was very hungry.", "{he} had not eaten all day."), "{he} made a big sandwich."),
        "tired": (("{he} was very tired.", "{he} had not slept at all."), "{he} went straight to bed."),
        "cold": (("{he} was very cold.", "{his_c} hands were like ice."), "{he} sat close to the fire."),
    },
    "news": {
        "won": (("{he} won the game.", "{his_c} team won the match."), "{he} danced with joy."),
        "lost": (("{he} lost the game.", "{his_c} team lost the match."), "{he} cried a little."),
        "scared": (("{he} heard a ghost story.", "{he} saw a big spider."), "{he} shook with fear."),
        "late": (("{he} woke up late.", "{he} missed the first bus."), "{he} ran to school."),
    },
}  # fmt: skip

_FILLERS = (
    "It was Monday morning.",
    "The house was quiet.",
    "{he} put on a green coat.",
    "{he} talked to a friend.",
    "The street was empty.",
    "{he} thought about it.",
    "Time went by slowly.",
    "A clock struck four.",
    "{he} looked around.",
    "The door was open.",
)

_SETTINGS = ("at home", "in town", "on a trip", "with a friend")
_THINGS = ("kite", "ball", "lamp", "drum", "map", "cup")
_DRINKS = ("milk", "tea", "juice", "coffee")
_SCENE_WEIGHTS: dict[str, int] = {**dict.fromkeys(_ASSOCIATIONS, 4), "gift": 1, "drink": 2}


def _fill(template: str, person: _Person) -> str:
    return template.format(he=person.he, his=person.his, his_c=person.his.capitalize())


def _asides(draw: random.Random, person: _Person, scene: str) -> list[str]:
    """Two sentences that decide nothing: padding, and as often as not the cue of a scene that the ending does not ask about."""
    padding = [_fill(filler, person) for filler in draw.sample(_FILLERS, 2)]
    if draw.random() < 0.5:
        return padding
    other = draw.choice([name for name in _ASSOCIATIONS if name != scene])
    cues, _ = draw.choice(list(_ASSOCIATIONS[other].values()))
    return [_fill(draw.choice(cues), person), padding[1]]


@dataclass(frozen=True)
class _Roles:
    """What fixes the two endings of a story; everything else about it is drawn anew."""

    scene: str
    person: _Person
    right: str
    wrong: str
    thing: str = ""

    def mirrored(self) -> _Roles:
        person = _person(self.right) if self.scene == "gift" else self.person
        return replace(self, person=person, right=self.wrong, wrong=self.right)


def _cast(draw: random.Random) -> _Roles:
    scene = draw.choices(list(_SCENE_WEIGHTS), list(_SCENE_WEIGHTS.values()))[0]
    if scene == "gift":
        taker, giver = draw.sample(GIRLS + BOYS, 2)
        return _Roles(scene, _person(giver), taker, giver, draw.choice(_THINGS))
    right, wrong = draw.sample(_DRINKS if scene == "drink" else list(_ASSOCIATIONS[scene]), 2)
    return _Roles(scene, _person(draw.choice(GIRLS + BOYS)), right, wrong)


def _tell(draw: random.Random, roles: _Roles) -> Story:
    if roles.scene == "gift":
        return _tell_gift(draw, roles)
    if roles.scene == "drink":
        return _tell_drink(draw, roles)
    person, values = roles.person, _ASSOCIATIONS[roles.scene]
    cues, right = values[roles.right]
    body = [_fill(draw.choice(cues), person), *_asides(draw, person, roles.scene)]
    draw.shuffle(body)
    opening = f"{person.name} was {draw.choice(_SETTINGS)}."
    return Story(roles.scene, (opening, body[0], body[1], body[2]), _fill(right, person), _fill(values[roles.wrong][1], person))


def _tell_gift(draw: random.Random, roles: _Roles) -> Story:
    """Who has the thing in the end: the one it was given to, not the one who had it first."""
    giver, taker, thing = roles.person, roles.right, roles.thing
    body = [*_asides(draw, giver, roles.scene), f"{giver.he} gave the {thing} to {taker}."]
    draw.shuffle(body)
    sentences = (f"{giver.name} had a {thing}.", body[0], body[1], body[2])
    return Story(roles.scene, sentences, f"Now {taker} has the {thing}.", f"Now {giver.name} has the {thing}.")


def _tell_drink(draw: random.Random, roles: _Roles) -> Story:
    """Both drinks are named; the one that was taken in the end counts."""
    person = roles.person
    sentences = (
        f"{person.name} was in a cafe.",
        f"{person.he} asked for {roles.wrong}.",
        _asides(draw, person, roles.scene)[0],
        f"But then {person.he.lower()} took {roles.right}.",
    )
    return Story(roles.scene, sentences, f"{person.he} enjoyed the {roles.right}.", f"{person.he} enjoyed the {roles.wrong}.")


def is_held_out(context: str) -> bool:
    """Whether a context belongs to the benchmark and so must never be trained on."""
    return int.from_bytes(hashlib.blake2b(context.encode(), digest_size=8).digest(), "big") % HELD_OUT_EVERY == 0


def training_stories(seed: int) -> Iterator[Story]:
    """An endless stream of stories, none of them held out.

    Args:
        seed: The same seed gives the same stream.
    """
    draw = random.Random(f"train {seed}")
    while True:
        story = _tell(draw, _cast(draw))
        if not is_held_out(story.context):
            yield story


def held_out_stories(count: int, seed: int = 0) -> list[Story]:
    """Distinct held-out stories in mirrored twos.

    The two endings of a question stand again in the next question with the roles exchanged, under another context, so any
    rule that looks at the endings alone is right exactly half the time.

    Args:
        count: Number of stories; even.
        seed: The same seed gives the same stories.

    Raises:
        ValueError: If ``count`` is odd or not positive.
    """
    if count <= 0 or count % 2:
        raise ValueError(f"held-out stories come in mirrored twos: count must be even and positive, got {count}")
    draw = random.Random(f"held out {seed}")
    told: list[Story] = []
    seen: set[str] = set()

    def tell_held_out(roles: _Roles) -> Story:
        while True:
            story = _tell(draw, roles)
            if is_held_out(story.context) and story.context not in seen:
                seen.add(story.context)
                return story

    while len(told) < count:
        roles = _cast(draw)
        told.extend((tell_held_out(roles), tell_held_out(roles.mirrored())))
    return told
