"""Controlled edits: from one scene to another that differs in a known way."""

from collections.abc import Callable
from dataclasses import replace

from benchmarks.bundled_pairs import scenes
from benchmarks.bundled_pairs.scenes import Concept, Party, Scene, Source

Edit = Callable[[Source, Scene], Scene | None]


def swap(_: Source, scene: Scene) -> Scene | None:
    """Turn round who does it to whom."""
    if scene.receiver is not None:
        return replace(scene, agent=scene.receiver, receiver=scene.agent)
    if scene.patient is not None and scene.patient.concept.kind in ("person", "animal"):
        if not scene.verb.animals and scene.patient.concept.kind != scene.agent.concept.kind:
            return None
        return replace(scene, agent=scene.patient, patient=scene.agent)
    return None


def negate(_: Source, scene: Scene) -> Scene:
    """Say that it is not so, or no longer say it."""
    return replace(scene, negated=not scene.negated)


def modifier(source: Source, scene: Scene) -> Scene:
    """Add, drop or change a number, a quality, the place, the time or the manner."""
    draw = source.random.random()
    if draw < 0.3:
        return replace(scene, place=_changed(source, scene.place, scenes.PLACES))
    if draw < 0.42:
        return replace(scene, time=_changed(source, scene.time, scenes.TIMES))
    if draw < 0.5 and scene.verb.kind in ("doing", "handling"):
        return replace(scene, manner=_changed(source, scene.manner, scenes.MANNERS))
    if draw < 0.62:
        return replace(scene, agent=replace(scene.agent, number=source.choose([1, 2, 3])))
    if scene.patient is not None and source.chance(0.5):
        return replace(scene, patient=_requalified(source, scene.patient))
    return replace(scene, agent=_requalified(source, scene.agent))


def party(source: Source, scene: Scene) -> Scene:
    """Put someone or something else in the place of one party, often a near concept."""
    name = source.choose([name for name in ("agent", "patient", "receiver") if getattr(scene, name) is not None])
    old: Party = getattr(scene, name)
    pool = scenes.PEOPLE + scenes.ANIMALS + scenes.THINGS
    near = source.chance(0.5)
    alike = [concept for concept in pool if (concept.group if near else concept.kind) == _sort(old.concept, near)]
    new = source.concept(alike) if _any_known(source, alike) else old.concept
    quality = old.quality if new.kind == old.concept.kind else None
    return replace(scene, **{name: replace(old, concept=new, quality=quality)})


def verb(source: Source, scene: Scene) -> Scene:
    """Let something else happen to the same parties."""
    pools = {
        "doing": scenes.DOINGS,
        "handling": scenes.THING_VERBS,
        "dealing": scenes.BEING_VERBS,
        "transfer": scenes.TRANSFER_VERBS,
        "relation": scenes.RELATIONS,
    }
    pool = pools[scene.verb.kind]
    animals = any(party.concept.kind == "animal" for party in scene.parties())
    if scene.verb.kind == "handling":
        things = scene.patient
        pool = [new for new in pool if things is not None and things.concept.kind in new.takes]
    elif scene.verb.kind == "dealing" and animals:
        pool = [new for new in pool if new.animals]
    elif scene.verb.kind == "doing" and animals:
        pool = [new for new in pool if new.words[0] in scenes.lexicon.ANIMAL_DOINGS]
    near = [new for new in pool if new.group == scene.verb.group]
    return replace(scene, verb=source.concept(near if source.chance(0.4) else pool))


def topic(source: Source, scene: Scene) -> Scene:
    """Another scene; sometimes the same agent, patient or place strays into it."""
    new = scenes.draw_scene(source)
    draw = source.random.random()
    if draw < 0.3 and scene.agent.concept.kind == new.agent.concept.kind:
        return replace(new, agent=scene.agent)
    if draw < 0.45 and scene.patient and new.patient and scene.patient.concept.kind == new.patient.concept.kind:
        return replace(new, patient=scene.patient)
    if draw < 0.6 and new.verb.kind != "relation":
        return replace(new, place=scene.place)
    return new


def _sort(concept: Concept, near: bool) -> str:
    return concept.group if near else concept.kind


def _any_known(source: Source, concepts: list[Concept]) -> bool:
    return any(concept.split in ("all", source.split) for concept in concepts)


def _changed(source: Source, old: Concept | None, pool: list[Concept]) -> Concept | None:
    if old is not None and source.chance(0.5):
        return None
    return source.concept(pool)


def _requalified(source: Source, old: Party) -> Party:
    if old.quality is not None and source.chance(0.4):
        return replace(old, quality=None)
    return replace(old, quality=scenes.draw_quality(source, old))


EDITS: dict[str, Edit] = {
    "modifier": modifier,
    "party": party,
    "verb": verb,
    "swap": swap,
    "negation": negate,
    "topic": topic,
}
