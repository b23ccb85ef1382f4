"""From a scene to an English sentence, in one of several constructions that all mean the same."""

from dataclasses import dataclass

from benchmarks.bundled_pairs import lexicon
from benchmarks.bundled_pairs.scenes import Concept, Party, Scene, Source

_NUMBERS = {1: ("a", "one"), 2: ("two",), 3: ("three",)}
_VOWELS = "aeiou"
_HELD_OUT_VOICES = {"dev": "it is", "test": "the one"}


@dataclass(frozen=True, slots=True)
class Style:
    """How a sentence is put: its construction and tense, "the" or "a", the place in front or behind."""

    voice: str
    progressive: bool
    definite: bool
    front: bool


def draw_style(source: Source, scene: Scene) -> Style:
    """A construction that this scene can take; dev and test have one each that train never shows."""
    voices = ["active", "active", "active"]
    if scene.verb.others:
        voices += ["other side"] * 2
    if scene.verb.kind in ("handling", "dealing", "transfer"):
        voices += ["passive"] * 2
    if scene.verb.kind in ("doing", "handling", "dealing"):
        if scene.agent.number == 1 or not scene.negated:
            voices += ["there"]
        if source.split in _HELD_OUT_VOICES and scene.agent.number == 1 and not scene.negated:
            voices += [_HELD_OUT_VOICES[source.split]] * 2
    return Style(source.choose(voices), source.chance(0.6), source.chance(0.35), source.chance(0.3))


def choose_words(source: Source, scene: Scene, taken: dict[Concept, str] | None = None) -> dict[Concept, str]:
    """A word for each concept; other words than `taken` where there are synonyms."""
    concepts = {scene.verb, *(party.concept for party in scene.parties())}
    concepts |= {party.quality for party in scene.parties() if party.quality is not None}
    concepts |= {detail for detail in (scene.place, scene.time, scene.manner) if detail is not None}
    words = {}
    for concept in sorted(concepts, key=lambda concept: (concept.kind, concept.words)):
        free = [word for word in concept.words if taken is None or word != taken.get(concept)]
        words[concept] = source.choose(free or list(concept.words))
    return words


def sentence(source: Source, scene: Scene, style: Style, words: dict[Concept, str]) -> str:
    """The scene as one sentence with a capital and a full stop."""
    clause = _Clause(source, scene, style, words)
    body = " ".join(clause.body().split())
    if style.front and scene.place is not None and style.voice in ("active", "passive"):
        text = f"{words[scene.place]}, {body} {clause.after(place=False)}"
    elif style.voice == "the one":
        text = body  # "… is a monkey at the museum" would be another meaning
    else:
        text = f"{body} {clause.after(place=True)}"
    return text.strip()[0].upper() + text.strip()[1:] + "."


class _Clause:
    def __init__(self, source: Source, scene: Scene, style: Style, words: dict[Concept, str]) -> None:
        self.scene, self.style, self.words = scene, style, words
        self.no = scene.negated and source.chance(0.4) and scene.agent.number == 1
        self.verb, _, self.particle = words[scene.verb].partition(" ")
        self.other = source.choose(list(scene.verb.others)) if style.voice == "other side" else ""

    def body(self) -> str:
        """The clause without place, time and manner."""
        scene = self.scene
        agent = self._party(scene.agent)
        patient = self._party(scene.patient)
        receiver = self._party(scene.receiver)
        if scene.verb.kind == "relation":
            return self._relation(agent, patient)
        if self.style.voice == "other side":
            return self._other_side(agent, patient, receiver)
        objects = f"{patient} {self.particle} {receiver}" if scene.receiver else patient
        if self.style.voice == "passive":
            verb = self._be(scene.patient, "being" * self.style.progressive)
            given = f"{self.particle} {receiver}" if scene.receiver else ""
            return f"{patient} {verb} {participle(self.verb)} {given} by {agent}"
        if self.style.voice == "there":
            return self._there(objects)
        if self.style.voice == "it is":
            return f"it is {agent} that is {ing(self.verb)} {objects}"
        if self.style.voice == "the one":
            return f"the one that is {ing(self.verb)} {objects} {self.after(place=True)} is {agent}"
        if self.no:
            return f"no {self._bare(scene.agent)} {self._positive(self.verb, 1)} {objects}"
        return f"{agent} {self._finite(self.verb, scene.agent.number)} {objects}"

    def after(self, *, place: bool) -> str:
        """Manner, place and time, behind the clause."""
        details = (self.scene.manner, self.scene.place if place else None, self.scene.time)
        return " ".join(self.words[detail] for detail in details if detail is not None)

    def _relation(self, agent: str, patient: str) -> str:
        if self.style.voice == "other side":
            return f"{patient} {self._be(self.scene.patient)} {self.other} {agent}"
        return f"{agent} {self._be(self.scene.agent)} {self.words[self.scene.verb]} {patient}"

    def _other_side(self, agent: str, patient: str, receiver: str) -> str:
        verb, _, particle = self.other.partition(" ")
        subject, rest = (receiver, f"{patient} {particle} {agent}") if receiver else (patient, f"{particle} {agent}")
        party = self.scene.receiver or self.scene.patient
        number = party.number if party else 1
        if verb == "be":
            return f"{subject} {self._be(party)} {rest}"
        return f"{subject} {self._finite(verb, number)} {rest}"

    def _there(self, objects: str) -> str:
        scene = self.scene
        agent = self._party(scene.agent, definite=False)
        if scene.negated:
            agent = f"no {self._bare(scene.agent)}"
        be = "is" if scene.agent.number == 1 or scene.negated else "are"
        return f"there {be} {agent} {ing(self.verb)} {objects}"

    def _finite(self, verb: str, number: int) -> str:
        if not self.scene.negated:
            return self._positive(verb, number)
        if self.style.progressive:
            return f"{'is' if number == 1 else 'are'} not {ing(verb)}"
        return f"{'does' if number == 1 else 'do'} not {verb}"

    def _positive(self, verb: str, number: int) -> str:
        if self.style.progressive:
            return f"{'is' if number == 1 else 'are'} {ing(verb)}"
        return third_person(verb) if number == 1 else verb

    def _be(self, party: Party | None, then: str = "") -> str:
        be = "is" if party is None or party.number == 1 else "are"
        return f"{be} {'not' if self.scene.negated else ''} {then}"

    def _party(self, party: Party | None, *, definite: bool | None = None) -> str:
        if party is None:
            return ""
        noun = self._bare(party)
        definite = self.style.definite if definite is None else definite
        if party.number > 1:
            return f"{'the ' if definite else ''}{_NUMBERS[party.number][0]} {noun}"
        if definite or party.concept.kind == "instrument":
            return f"the {noun}"
        return f"{'an' if noun[0] in _VOWELS else 'a'} {noun}"

    def _bare(self, party: Party) -> str:
        noun = self.words[party.concept]
        noun = plural(noun) if party.number > 1 else noun
        return f"{self.words[party.quality]} {noun}" if party.quality is not None else noun


def plural(noun: str) -> str:
    """Two or more of them."""
    if noun in lexicon.IRREGULAR_PLURALS:
        return lexicon.IRREGULAR_PLURALS[noun]
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh", "to")) else "s")


def third_person(verb: str) -> str:
    """He or she does it."""
    if verb in lexicon.IRREGULAR_VERBS:
        return lexicon.IRREGULAR_VERBS[verb][0]
    return verb + ("es" if verb.endswith(("s", "x", "ch", "sh")) else "s")


def ing(verb: str) -> str:
    """The form that ends in -ing."""
    if verb in lexicon.IRREGULAR_VERBS:
        return lexicon.IRREGULAR_VERBS[verb][1]
    return (verb[:-1] if verb.endswith("e") else verb) + "ing"


def participle(verb: str) -> str:
    """The form after "is being"."""
    if verb in lexicon.IRREGULAR_VERBS:
        return lexicon.IRREGULAR_VERBS[verb][2]
    return verb + ("d" if verb.endswith("e") else "ed")
