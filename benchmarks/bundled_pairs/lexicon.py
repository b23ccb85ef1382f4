"""The words of the bundled set. One line is a group of near concepts, a comma parts concepts, a slash parts synonyms.

Lines under `all` occur in every split, lines under `dev` and `test` in that split only, so that a model which has
learned the words of train still meets pairs about things it was never trained on.
"""

PEOPLE = {
    "all": """
        man/guy, boy/lad
        woman/lady, girl
        child/kid, baby/infant
        doctor, nurse
        teacher, student/pupil
        policeman/cop, soldier, guard
        father/dad, mother/mom
        singer, dancer
        farmer, worker
        driver, pilot
        king, queen
    """,
    "dev": """
        writer/author, actor
        captain, sailor
        tourist/visitor
    """,
    "test": """
        cook/chef, waiter
        lawyer/attorney, judge
        player/athlete, artist
    """,
}

ANIMALS = {
    "all": """
        dog, puppy
        cat, kitten
        horse, pony
        cow, bull
        bird, duck
    """,
    "dev": """
        lion, tiger
        rabbit, mouse
    """,
    "test": """
        bear, monkey
        goat, pig
    """,
}

THINGS = {
    "food": {
        "all": """
            apple, orange
            potato, onion
            cake, pie
            egg
        """,
        "dev": "pizza, sandwich",
        "test": "tomato, carrot",
    },
    "instrument": {"all": "guitar, violin\n drum", "dev": "flute", "test": "piano, trumpet"},
    "vehicle": {
        "all": """
            car/automobile, truck, van
            bike/bicycle, motorcycle/motorbike
            boat, ship
        """,
        "dev": "plane/airplane",
        "test": "bus, train",
    },
    "small": {
        "all": """
            ball, toy, doll
            box/package, bag, basket
            bottle, cup
            plate/dish, bowl
            stone/rock, brick
            shirt, dress
            coat/jacket, hat/cap
        """,
        "dev": "lamp, candle\n shoe, boot",
        "test": "phone/telephone, camera\n chair, table",
    },
    "text": {"all": "book/novel\n letter\n newspaper, magazine", "dev": "map", "test": "story, song"},
    "building": {"all": "house, hut/cabin\n wall, fence\n bridge", "dev": "tent", "test": "barn, castle"},
    "opening": {"all": "door, gate\n window"},
}

# Concepts of verbs that take a thing, and the things they take.
THING_VERBS = {
    "all": """
        eat: food
        cut/slice: food
        wash/clean: vehicle small
        repair/fix: vehicle instrument building
        break/destroy: small instrument opening
        throw/toss, kick: small
        carry, hold: small food text
        lift/raise, drop: small food
        read, write: text
        play: instrument
        drive, ride: vehicle
        paint, draw: building vehicle
        build/construct: building vehicle
        open, close/shut: opening
        find/discover, lose: small text instrument
    """,
    "dev": """
        cook/prepare: food
        pull/drag: vehicle small
    """,
    "test": """
        photograph: building vehicle instrument
        steal, hide: small text instrument
    """,
}

# Between two beings. After "<" the same event seen from the other side; "*" marks what animals do as well.
BEING_VERBS = {
    "all": """
        chase* < run away from
        lead/guide* < follow
        watch/observe*
        help/assist
        hug/embrace, kiss
        hit/strike, push/shove*
        call/phone
        visit
        thank, greet/welcome
    """,
    "dev": """
        teach < learn from
        attack*
        blame
    """,
    "test": """
        beat/defeat* < lose to
        scare/frighten* < be afraid of
        save/rescue
    """,
}

# Someone, something, someone else; after "<" the receiver's side.
TRANSFER_VERBS = {
    "all": """
        give to/hand to < get from/receive from
        sell to < buy from/purchase from
    """,
    "dev": "show to",
    "test": "lend to < borrow from",
}

# Comparisons; after "<" the same said of the other one.
RELATIONS = {
    "all": """
        older than < younger than
        taller than < shorter than
        in front of < behind
    """,
    "dev": "stronger than < weaker than",
    "test": "bigger than/larger than < smaller than\n faster than < slower than",
}

DOINGS = {
    "all": """
        walk/stroll, run
        jump/leap, dance
        laugh, smile/grin
        talk/speak, shout/yell
        sit, stand
        sleep, rest/relax
        sing
        work
        wait
    """,
    "dev": "swim\n fall",
    "test": "cry/weep\n travel",
}
ANIMAL_DOINGS = ("walk", "run", "jump", "sit", "stand", "sleep", "wait", "swim", "fall")

# Opposites and other near qualities share a line.
QUALITIES = {
    "person": {
        "all": """
            old/elderly, young
            happy/glad, sad/unhappy
            tall, short
            rich/wealthy, poor
            tired
            angry/mad
            famous
        """,
        "dev": "strong, weak",
        "test": "hungry\n clever/smart",
    },
    "animal": {"all": "big/large, small/little\n black, white, brown\n old, young", "dev": "wet", "test": "hungry"},
    "thing": {
        "all": """
            big/large/huge, small/little/tiny
            red, blue, green
            black, white
            new, old
            dirty, clean
        """,
        "dev": "heavy",
        "test": "expensive, cheap",
    },
}

PLACES = {
    "all": """
        in the kitchen, in the bathroom
        in the garden/in the yard, in the park
        on the street/on the road
        at the beach/by the sea, near the lake
        in the field/in the meadow
        in the forest/in the woods
        in the shop/in the store, in the market
        at the station
        near the church
    """,
    "dev": "at the airport, in the hotel\n in the snow",
    "test": "in the desert, on the hill\n at the hospital, at the museum",
}

TIMES = {
    "all": """
        in the morning, in the evening, at night
        before lunch, after dinner
        on Sunday, on Friday
        in winter, in summer
    """,
    "dev": "in spring\n on Monday",
    "test": "in autumn\n on Saturday",
}

MANNERS = {
    "all": """
        quickly/fast, slowly
        quietly/silently, loudly
        carefully
        happily
    """,
    "dev": "suddenly",
    "test": "alone",
}

IRREGULAR_PLURALS = {
    "man": "men",
    "woman": "women",
    "child": "children",
    "policeman": "policemen",
    "baby": "babies",
    "lady": "ladies",
    "puppy": "puppies",
    "pony": "ponies",
    "mouse": "mice",
    "story": "stories",
}

# base: third person, -ing, participle, where the regular forms are wrong.
IRREGULAR_VERBS = {
    "be": ("is", "being", "been"),
    "beat": ("beats", "beating", "beaten"),
    "break": ("breaks", "breaking", "broken"),
    "build": ("builds", "building", "built"),
    "buy": ("buys", "buying", "bought"),
    "carry": ("carries", "carrying", "carried"),
    "cry": ("cries", "crying", "cried"),
    "cut": ("cuts", "cutting", "cut"),
    "draw": ("draws", "drawing", "drawn"),
    "drive": ("drives", "driving", "driven"),
    "drag": ("drags", "dragging", "dragged"),
    "drop": ("drops", "dropping", "dropped"),
    "eat": ("eats", "eating", "eaten"),
    "find": ("finds", "finding", "found"),
    "get": ("gets", "getting", "got"),
    "give": ("gives", "giving", "given"),
    "grin": ("grins", "grinning", "grinned"),
    "hide": ("hides", "hiding", "hidden"),
    "hit": ("hits", "hitting", "hit"),
    "hold": ("holds", "holding", "held"),
    "hug": ("hugs", "hugging", "hugged"),
    "lead": ("leads", "leading", "led"),
    "lend": ("lends", "lending", "lent"),
    "lose": ("loses", "losing", "lost"),
    "read": ("reads", "reading", "read"),
    "ride": ("rides", "riding", "ridden"),
    "run": ("runs", "running", "run"),
    "sell": ("sells", "selling", "sold"),
    "show": ("shows", "showing", "shown"),
    "shut": ("shuts", "shutting", "shut"),
    "sit": ("sits", "sitting", "sat"),
    "steal": ("steals", "stealing", "stolen"),
    "strike": ("strikes", "striking", "struck"),
    "swim": ("swims", "swimming", "swum"),
    "teach": ("teaches", "teaching", "taught"),
    "throw": ("throws", "throwing", "thrown"),
    "travel": ("travels", "travelling", "travelled"),
    "write": ("writes", "writing", "written"),
}
