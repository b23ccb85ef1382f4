"""What a sentence of the bundled set means, how far two meanings lie apart, and scenes drawn at random.

A pair is scored from its two scenes, never from its words: 5 for the same scene however it is put, less for every
difference, 0 for another topic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from benchmarks.bundled_pairs import lexicon

Item = TypeVar("Item")
SPLITS = ("all", "dev", "test")


@dataclass(frozen=True, slots=True)
class Concept:
    """One meaning and its synonyms. group: near concepts share it. kind: what sort of thing it is."""

    words: tuple[str, ...]
    group: str
    kind: str
    split: str  # "all", or the only split that knows it
    others: tuple[str, ...] = ()  # the same event or relation seen from the other side
    takes: tuple[str, ...] = ()  # kinds of things a verb takes
    animals: bool = False


@dataclass(frozen=True, slots=True)
class Party:
    """A person, animal or thing in a scene, how many of them, and one quality."""

    concept: Concept
    number: int = 1
    quality: Concept | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """Who does what to whom, where, when and how; or that this is not so."""

    verb: Concept
    agent: Party
    patient: Party | None = None
    receiver: Party | None = None
    place: Concept | None = None
    time: Concept | None = None
    manner: Concept | None = None
    negated: bool = False

    def parties(self) -> Iterator[Party]:
        """Agent, patient and receiver, as far as there are."""
        return (party for party in (self.agent, self.patient, self.receiver) if party is not None)

    def repeats_itself(self) -> bool:
        """Whether two parties are of the same concept: "a nurse calls a nurse" cannot be turned round."""
        parties = list(self.parties())
        return len({party.concept for party in parties}) < len(parties)

    def concepts(self) -> Iterator[Concept]:
        """The concepts a scene is about; qualities, place, time and manner are decoration."""
        yield self.verb
        yield from (party.concept for party in self.parties())


def _concepts(lines: dict[str, str], kind: str) -> list[Concept]:
    found = []
    for split in SPLITS:
        for number, line in enumerate(filter(None, map(str.strip, lines.get(split, "").splitlines()))):
            line, _, takes = line.partition(":")
            line, _, others = line.partition("<")
            found += [
                Concept(
                    words=tuple(word.strip().removesuffix("*") for word in concept.split("/")),
                    group=f"{kind} {split} {number}",
                    kind=kind,
                    split=split,
                    others=tuple(word.strip() for word in others.split("/") if word.strip()),
                    takes=tuple(takes.split()),
                    animals="*" in concept,
                )
                for concept in line.split(",")
            ]
    return found


PEOPLE = _concepts(lexicon.PEOPLE, "person")
ANIMALS = _concepts(lexicon.ANIMALS, "animal")
THINGS = [thing for kind, lines in lexicon.THINGS.items() for thing in _concepts(lines, kind)]
DOINGS = _concepts(lexicon.DOINGS, "doing")
THING_VERBS = _concepts(lexicon.THING_VERBS, "handling")
BEING_VERBS = _concepts(lexicon.BEING_VERBS, "dealing")
TRANSFER_VERBS = _concepts(lexicon.TRANSFER_VERBS, "transfer")
RELATIONS = _concepts(lexicon.RELATIONS, "relation")
QUALITIES = {kind: _concepts(lines, f"{kind} quality") for kind, lines in lexicon.QUALITIES.items()}
PLACES = _concepts(lexicon.PLACES, "place")
TIMES = _concepts(lexicon.TIMES, "time")
MANNERS = _concepts(lexicon.MANNERS, "manner")


@dataclass(slots=True)
class Source:
    """Random choices, all made from `Random.random`, whose sequence Python keeps the same from version to version."""

    split: str  # "train", "dev" or "test"
    random: Random = field(repr=False)

    def chance(self, share: float) -> bool:
        """True in this share of calls."""
        return self.random.random() < share

    def choose(self, items: list[Item]) -> Item:
        """One item, all equally likely."""
        return items[int(self.random.random() * len(items))]

    def concept(self, concepts: list[Concept], fits: Callable[[Concept], bool] = lambda _: True) -> Concept:
        """A concept this split may use; dev and test favour the ones that only they have."""
        known = [concept for concept in concepts if concept.split in ("all", self.split) and fits(concept)]
        own = [concept for concept in known if concept.split == self.split]
        return self.choose(own) if own and self.chance(0.4) else self.choose(known)


def draw_scene(source: Source) -> Scene:
    """A scene at random: something done, handled, done to someone, handed over, or a comparison."""
    draw = source.random.random()
    if draw < 0.22:
        return decorated(source, _draw_doing(source))
    if draw < 0.57:
        verb = source.concept(THING_VERBS)
        thing = source.concept(THINGS, lambda thing: thing.kind in verb.takes)
        return decorated(source, Scene(verb, draw_party(source, "person"), Party(thing)))
    if draw < 0.82:
        verb = source.concept(BEING_VERBS)
        kinds = [source.choose(["person", "animal"]) if verb.animals else "person" for _ in range(2)]
        return decorated(source, _two(source, verb, kinds))
    if draw < 0.92:
        scene = _two(source, source.concept(TRANSFER_VERBS), ["person", "person"])
        thing = source.concept(THINGS, lambda thing: thing.kind in ("small", "food", "text", "instrument"))
        return decorated(source, replace(scene, patient=Party(thing), receiver=scene.patient))
    kind = source.choose(["person", "animal"])
    return _two(source, source.concept(RELATIONS), [kind, kind])


def draw_party(source: Source, kind: str) -> Party:
    """A person or animal, sometimes several."""
    concepts = PEOPLE if kind == "person" else ANIMALS
    number = source.choose([2, 3]) if source.chance(0.15) else 1
    return Party(source.concept(concepts), number)


def draw_quality(source: Source, party: Party) -> Concept:
    """A quality that fits the party."""
    return source.concept(QUALITIES.get(party.concept.kind, QUALITIES["thing"]))


def decorated(source: Source, scene: Scene) -> Scene:
    """The scene with a place, a time, a manner or a quality now and then."""
    return replace(
        scene,
        agent=_maybe_quality(source, scene.agent),
        patient=scene.patient and _maybe_quality(source, scene.patient),
        place=source.concept(PLACES) if source.chance(0.4) else None,
        time=source.concept(TIMES) if source.chance(0.15) else None,
        manner=source.concept(MANNERS) if scene.verb.kind in ("doing", "handling") and source.chance(0.12) else None,
    )


def _maybe_quality(source: Source, party: Party) -> Party:
    return replace(party, quality=draw_quality(source, party)) if source.chance(0.25) else party


def _draw_doing(source: Source) -> Scene:
    if source.chance(0.3):
        verb = source.concept(DOINGS, lambda verb: verb.words[0] in lexicon.ANIMAL_DOINGS)
        return Scene(verb, draw_party(source, "animal"))
    return Scene(source.concept(DOINGS), draw_party(source, "person"))


def _two(source: Source, verb: Concept, kinds: list[str]) -> Scene:
    agent = draw_party(source, kinds[0])
    while True:
        patient = draw_party(source, kinds[1])
        if patient.concept is not agent.concept:
            return Scene(verb, agent, patient)


# How far apart two scenes are

# Share of the meaning that verb, agent, patient and receiver carry.
_SHARES = {"doing": (0.54, 0.46), "transfer": (0.3, 0.22, 0.26, 0.22)}
_TWO_PARTIES = (0.38, 0.3, 0.32)
_KEPT_BY_SWAP = 0.6
_KEPT_BY_NEGATION = 0.6
_PEOPLE_AND_ANIMALS = ("person", "animal")


def score(left: Scene, right: Scene) -> float:
    """How alike two scenes are, 0 to 5 in steps of 0.1.

    The core is 5 times the share of meaning that verb and parties have in common; who does it to whom turned round
    keeps 60 % of that, and so does negation of one of the two; details take away tenths of what is left.
    """
    core, kept = _core(left, right), 1.0
    for other in ("patient", "receiver"):
        if getattr(left, other) is not None and getattr(left, other).concept.kind in _PEOPLE_AND_ANIMALS:
            turned = replace(left, **{"agent": getattr(left, other), other: left.agent})
            if _core(turned, right) > core:
                left, core, kept = turned, _core(turned, right), _KEPT_BY_SWAP
    if left.negated != right.negated:
        kept *= _KEPT_BY_NEGATION
    return round(5 * kept * core * max(0.0, 1 - _details(left, right)), 1)


def _core(left: Scene, right: Scene) -> float:
    shares = max((_SHARES.get(scene.verb.kind, _TWO_PARTIES) for scene in (left, right)), key=len)
    pairs = [
        (left.verb, right.verb),
        *(
            (one and one.concept, other and other.concept)
            for one, other in (
                (left.agent, right.agent),
                (left.patient, right.patient),
                (left.receiver, right.receiver),
            )
        ),
    ]
    likenesses = (_likeness(*pair) for pair in pairs)
    return sum(share * likeness for share, likeness in zip(shares, likenesses, strict=False))


def _likeness(left: Concept | None, right: Concept | None) -> float:
    if left is None or right is None:
        return 0.0
    if left is right or set(left.words) & set(right.words):
        return 1.0
    if left.group == right.group:
        return 0.5
    return 0.2 if left.kind == right.kind and left.kind not in ("handling", "dealing", "doing") else 0.0


def _details(left: Scene, right: Scene) -> float:
    """The share of the core that differing numbers, qualities, place, time and manner take away."""
    taken = 0.0
    for one, other in zip(left.parties(), right.parties(), strict=False):
        taken += 0.08 * (one.number != other.number) + _detail(one.quality, other.quality, 0.08, 0.14)
    taken += _detail(left.place, right.place, 0.08, 0.14)
    taken += _detail(left.time, right.time, 0.06, 0.1) + _detail(left.manner, right.manner, 0.06, 0.1)
    return taken


def _detail(left: Concept | None, right: Concept | None, missing: float, other: float) -> float:
    if left is right:
        return 0.0
    return missing if left is None or right is None else other
