"""The full-text index: what it finds, and that it follows the bank in its transactions."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from sqlalchemy import select

from memory import (
    BankConfig,
    BankUnavailable,
    ByIds,
    CaseBank,
    CaseFilter,
    InvalidInput,
    NewCase,
)
from memory.schema import cases, meta, texts
from memory.storage.namespaces import namespace_state
from memory.storage.rows import all_words, cases_where, remove_words, spoken
from memory.text import lexical
from memory.text.lexical import SECRET
from memory.text.matching import coverage, grams, holds, near_verbatim, word_list
from memory.text.stemming import stem
from memory.text.tokens import MAX_TERMS, Cutter, Entry

WORDS = [
    *("harbour", "register", "captain", "engine", "ledger"),
    *("mountain", "river", "parish", "county", "bridge"),
]
STYLES = ("words", "trigrams")


@pytest.fixture(params=STYLES)
def style(request):
    return request.param


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location) as opened:
        yield opened


@pytest.fixture
def file_bank(tmp_path):
    """Where the engine below makes no difference."""
    with CaseBank.open(tmp_path / "bank.db") as opened:
        yield opened


@pytest.fixture
def styled(bank_location, style):
    with CaseBank.open(bank_location, config=BankConfig(lexical=style)) as opened:
        yield opened


def ids(hits):
    return [id_ for id_, _ in hits]


def with_index(bank, ask, namespace="default"):
    """Ask the index of a namespace something."""
    store = bank._store
    with store.read() as connection:
        state = namespace_state(connection, store.keys, namespace)
        return ask(connection, state.id, store.lexical)


def holding(bank, string, namespace="default"):
    return with_index(bank, lambda c, n, style: lexical.holding(c, n, string, style), namespace)


def alike(bank, text, namespace="default"):
    return with_index(bank, lambda c, n, style: lexical.alike(c, n, text, style), namespace)


def covering(bank, text, share, namespace="default"):
    ask = lambda c, n, style: lexical.covering(c, n, text, share, style)  # noqa: E731
    return with_index(bank, ask, namespace)


def wrong_rows(bank, namespace="default"):
    """Text rows that the index has otherwise than they are."""
    store = bank._store
    with store.write() as connection:
        state = namespace_state(connection, store.keys, namespace)
        mine = cases.c.namespace_id == state.id
        stored = cases_where(connection, mine, namespace, 0, 10_000)
        pairs = select(texts.c.case_id, texts.c.id).where(texts.c.case_id.is_not(None))
        rows = {row.case_id: row.id for row in connection.execute(pairs)}
        entries = [entry_of(rows[case.id], case) for case in stored]
        return lexical.check(connection, state.id, entries, store.lexical)


def entry_of(text_id, case):
    """What the index is told of a case: what it says, and every other text that it holds."""
    held = list(all_words(case))
    said = next(n for n in range(len(held) + 1) if "\n".join(held[:n]) == spoken(case))
    return Entry(text_id, spoken(case), "\n".join(held[said:]))


# Ranking


def test_the_case_with_the_rarer_words_comes_first(bank):
    common = [NewCase(f"the harbour {word}") for word in WORDS[1:]]
    (rare,) = bank.add([NewCase("the harbour astrolabe")])
    bank.add(common)
    hits = bank.search_text("harbour astrolabe", 3)
    assert hits[0][0] == rare
    assert len(hits) == 3
    assert ids(bank.search_text("astrolabe")) == [rare]


def test_plans_are_searched_and_the_rest_is_not(bank):
    bank.add(
        [
            NewCase(
                "one",
                plan="Look at the quadrant.",
                tags=("sextant",),
                source="theodolite",
                metadata={"where": "barometer"},
                external_id="compass-1",
            ),
            NewCase("two", plan=["Measure", "the altimeter"]),
        ]
    )
    assert ids(bank.search_text("quadrants")) == [1]
    assert ids(bank.search_text("altimeter measured")) == [2]
    for word in ("sextant", "theodolite", "barometer", "compass"):
        assert bank.search_text(word) == []
        assert holding(bank, word) == [1]


def test_words_match_by_their_stems_case_and_width_aside(file_bank):
    file_bank.add([NewCase("She related the RELATIONS of Straßen, ｆｕｌｌ　ｗｉｄｔｈ")])
    for query in ("relate", "related", "STRASSEN", "full", "Relational"):
        assert ids(file_bank.search_text(query)) == [1]
    assert file_bank.search_text("strand") == []


def test_stop_words_count_only_where_there_is_nothing_else(file_bank):
    file_bank.add([NewCase("the who"), NewCase("the harbour"), NewCase("a harbour")])
    assert sorted(ids(file_bank.search_text("the harbour"))) == [2, 3]
    assert ids(file_bank.search_text("the")) == [1, 2]


def test_equal_scores_go_to_the_lower_id_also_after_updates(file_bank):
    file_bank.add([NewCase(f"harbour {WORDS[i % 3 + 1]}") for i in range(30)])
    for id_ in (3, 9, 6):
        file_bank.update(id_, {"query": "harbour register again"})
        file_bank.update(id_, {"query": f"harbour {WORDS[(id_ - 1) % 3 + 1]}"})
    for k in (1, 5, 10, 30, 100):
        assert ids(file_bank.search_text("register", k)) == [1 + 3 * i for i in range(min(k, 10))]
        assert ids(file_bank.search_text("harbour", k)) == list(range(1, min(k, 30) + 1))


def test_ties_beyond_the_rows_looked_at_first_still_go_to_the_lower_id(bank):
    # More equal rows than are read at first, the lowest ids last in the index.
    count = 300
    bank.add([NewCase("harbour") for _ in range(count)])
    bank.update(1, {"query": "register"})
    bank.update(1, {"query": "harbour"})
    assert ids(bank.search_text("harbour", 5)) == [1, 2, 3, 4, 5]


def test_sqlite_ranks_as_bm25_computed_by_hand(tmp_path):
    rng = random.Random(1)
    with CaseBank.open(tmp_path / "bank.db") as bank:
        said = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(60)]
        bank.add([NewCase(words) for words in said])
        index = [
            with_index(bank, lambda c, n, s: Cutter(b"x" * 32, n, s)).row(Entry(0, words, ""))
            for words in said
        ]
        # A row's length counts its marks, and the mark of every row.
        sizes = [len(row.words) + len(row.marks) + 1 for row in index]
        mean = sum(sizes) / len(sizes)
        for query in ("harbour", "harbour captain bridge", " ".join(WORDS), "county county"):
            expected = []
            for id_, (words, size) in enumerate(zip(said, sizes, strict=True), start=1):
                score = 0.0
                for term in dict.fromkeys(query.split()):
                    with_it = sum(term in other.split() for other in said)
                    weight = max(1e-6, math.log((60 - with_it + 0.5) / (with_it + 0.5)))
                    often = Counter(words.split())[term]
                    score += weight * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * size / mean))
                if set(query.split()) & set(words.split()):
                    expected.append((id_, score))
            expected.sort(key=lambda hit: (-round(hit[1], 9), hit[0]))
            hits = bank.search_text(query, 20)
            assert ids(hits) == ids(expected[:20])
            assert [score for _, score in hits] == pytest.approx(
                [score for _, score in expected[:20]], rel=1e-6
            )


def test_in_a_large_bank_common_words_count_for_the_score_and_do_not_find(
    bank_location, monkeypatch
):
    monkeypatch.setattr(lexical, "_COMMON", 10)
    with CaseBank.open(bank_location) as bank:
        bank.add([NewCase(f"harbour number {i}") for i in range(15)])
        bank.add([NewCase(f"ledger number {i}") for i in range(30)])
        bank.add([NewCase("an astrolabe"), NewCase("an astrolabe in the harbour")])
        asked = []
        best = lexical._best
        monkeypatch.setattr(lexical, "_best", lambda *a: asked.append(len(a[3])) or best(*a))
        assert ids(bank.search_text("harbour astrolabe", 2)) == [47, 46]
        assert asked == [1], "only cases with an astrolabe were looked at"
        assert len(bank.search_text("harbour astrolabe", 5)) == 5, "too few: the common ones too"
        assert len(bank.search_text("harbour", 40)) == 16


def test_given_cases_score_what_a_search_scores_them(styled):
    rng = random.Random(3)
    said = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(90)]
    styled.add([NewCase(words, tags=("tag",) * (i % 3)) for i, words in enumerate(said)])
    styled.add([NewCase("harbour harbour")], namespace="other")
    styled.update(7, {"query": "the captain of the harbour"})
    for query in ("harbour", "captain's ledgers of the river", "nothing of it", "", "?!", "har"):
        expected = dict(styled.search_text(query, 1000))
        assert styled.text_scores(query, range(1, 200)) == expected
        some = [5, 90, 7, 7, 4000, -1, 2**70, *list(expected)[::4]]
        found = styled.text_scores(query, some)
        assert found == {id_: score for id_, score in expected.items() if id_ in some}
    assert styled.text_scores("harbour", []) == {}
    assert styled.text_scores("harbour", range(1, 200), namespace="nowhere") == {}
    assert styled.text_scores("harbour", [5, 7], namespace="other") == {}, "of this namespace alone"
    with pytest.raises(InvalidInput, match="id"):
        styled.text_scores("harbour", ["7"])


def test_what_is_kept_for_history_has_no_score_by_its_words(file_bank):
    ids_ = file_bank.add([NewCase(f"harbour {i}") for i in range(4)])
    file_bank.forget(ByIds((ids_[1],)), mode="invalidate")
    assert file_bank.text_scores("harbour", ids_) == dict(file_bank.search_text("harbour"))
    assert len(file_bank.text_scores("harbour", ids_)) == 3


def test_many_cases_are_scored_in_parts_and_common_words_cost_no_accuracy(
    bank_location, monkeypatch
):
    monkeypatch.setattr(lexical, "_AT_ONCE", 7)
    monkeypatch.setattr(lexical, "_COMMON", 10)
    with CaseBank.open(bank_location) as bank:
        bank.add([NewCase(f"harbour number {i}") for i in range(40)])
        bank.add([NewCase("an astrolabe in the harbour")])
        every = bank.text_scores("harbour astrolabe", range(1, 42))
        assert every == dict(bank.search_text("harbour astrolabe", 1000))
        ((first, score),) = bank.search_text("harbour astrolabe", 1)
        assert every[first] == pytest.approx(score, rel=1e-5), "only the rarer word was looked at"


# Filters and namespaces


def test_filters_hold_for_the_search_however_few_pass_them(bank):
    bank.add(
        [
            NewCase("harbour", source="few" if i % 150 == 149 else "many", outcome=i % 2)
            for i in range(450)
        ]
    )
    few = CaseFilter(source="few")
    assert ids(bank.search_text("harbour", 10, where=few)) == [150, 300, 450]
    assert ids(bank.search_text("harbour", 2, where=few)) == [150, 300]
    right = CaseFilter(source="few", min_outcome=0.5)
    assert ids(bank.search_text("harbour", 10, where=right)) == [150, 300, 450]
    assert bank.search_text("harbour", 10, where=CaseFilter(source="none")) == []


def test_what_is_kept_for_history_is_not_found(bank):
    bank.add([NewCase("harbour one"), NewCase("harbour two")])
    store = bank._store
    with store.write() as connection:
        connection.execute(cases.update().where(cases.c.id == 1).values(invalidated_at=1))
    assert ids(bank.search_text("harbour")) == [2]
    both = with_index(bank, lambda c, n, s: lexical.search(c, n, "harbour", 5, s, invalidated=True))
    assert ids(both) == [1, 2]
    assert holding(bank, "harbour") == [1, 2], "history is forgotten as well"
    assert alike(bank, "harbour one") == [1]


def test_namespaces_neither_see_nor_influence_each_other(bank):
    bank.add([NewCase("harbour captain"), NewCase("harbour")], namespace="mine")
    before = bank.search_text("harbour captain", namespace="mine")
    bank.add([NewCase("captain captain captain") for _ in range(50)], namespace="theirs")
    assert bank.search_text("harbour captain", namespace="mine") == before
    assert holding(bank, "harbour", "theirs") == []
    assert alike(bank, "captain captain captain", "mine") == []
    assert ids(bank.search_text("captain", 100, namespace="theirs")) == list(range(3, 53))


def test_equal_words_of_two_namespaces_and_two_banks_have_nothing_in_common():
    entry = Entry(1, "harbour captain 415-555-0186", "harbour")
    rows = [
        Cutter(secret * 32, number, "words").row(entry)
        for secret in (b"a", b"b")
        for number in (1, 2)
    ]
    tokens = [{*row.words, *row.rest, *row.marks} for row in rows]
    assert len(set().union(*tokens)) == sum(map(len, tokens))
    assert rows[0] == Cutter(b"a" * 32, 1, "words").row(entry)


# Odd queries


ODD = [
    '"',
    "''",
    "harbour OR",
    "NEAR(harbour register, 2)",
    "harbour*",
    "harbour AND NOT register",
    "words : harbour",
    "{words} : harbour",
    "^harbour",
    "harbour | register & !captain",
    "harbour <-> captain",
    "harbour:*",
    "harbour\\",
    "(((((",
    "--harbour; DROP TABLE cases",
    "%s %(x)s :x",
    "🙂 harbour 🙃",
]


def test_operators_of_the_engines_are_plain_words(styled):
    styled.add([NewCase("harbour"), NewCase("register")])
    for query in ODD:
        assert (1 in ids(styled.search_text(query))) == ("harbour" in query), query
    assert styled.count() == 2


def test_a_query_without_words_finds_nothing(file_bank):
    file_bank.add([NewCase("harbour")])
    for query in ("", "   ", "...", "🙂", "\n"):
        assert file_bank.search_text(query) == []


def test_a_query_of_100_000_characters_is_ranked_by_its_first_words(file_bank):
    file_bank.add([NewCase("harbour"), NewCase("zebra")])
    long = "harbour " + " ".join(f"word{i}" for i in range(12_000)) + " zebra"
    assert len(long) > 100_000
    assert ids(file_bank.search_text(long)) == [1]
    assert ids(file_bank.search_text("harbour " * 15_000)) == [1]
    cutter = Cutter(b"x" * 32, 1, file_bank._store.lexical)
    assert len(cutter.ranked(long)) == MAX_TERMS


def test_a_query_that_cannot_be_text_is_refused(file_bank):
    file_bank.add([NewCase("harbour")])
    for ask in (file_bank.search_text, lambda query: file_bank.text_scores(query, [1])):
        with pytest.raises(InvalidInput, match=r"'\\x00' at character 3, which no stored text has"):
            ask("har\x00bour")
        with pytest.raises(InvalidInput, match="at character 8, which no stored text has"):
            ask("harbour \ud800")
    with pytest.raises(InvalidInput, match="must be text"):
        file_bank.search_text(17)


def test_a_namespace_without_cases_gives_nothing(file_bank):
    assert file_bank.search_text("harbour") == []
    file_bank.add([NewCase("harbour")])
    file_bank.update(1, {"query": "register"})
    assert file_bank.search_text("harbour") == []


# Chinese, Japanese, Korean, and pieces of words


def test_text_without_spaces_is_found_by_any_part_of_it(styled):
    styled.add(
        [
            NewCase("我的电话号码是4155550186"),
            NewCase("東京タワーに行きました"),
            NewCase("서울에서 친구를 만났습니다"),
            NewCase("the harbour of 北京"),
        ]
    )
    for query, expected in (
        ("电话号码", 1),
        ("タワー", 2),
        ("ﾀﾜｰ", 2),
        ("서울에", 3),
        ("친구를", 3),
        ("北京", 4),
        ("京", 4),
    ):
        assert expected in ids(styled.search_text(query))
        assert expected in holding(styled, query)
    assert holding(styled, "上海") == []
    assert holding(styled, "电话") == [1]
    assert holding(styled, "码号") == []
    assert holding(styled, "4155550186") == [1]


def test_trigrams_find_parts_of_words_and_short_queries(bank_location):
    with CaseBank.open(bank_location, config=BankConfig(lexical="trigrams")) as bank:
        bank.add([NewCase("harbourmaster"), NewCase("a ledger", tags=("qz",))])
        assert ids(bank.search_text("bourma")) == [1]
        assert ids(bank.search_text("ar")) == [1]
        assert ids(bank.search_text("g")) == [2]
        assert bank.search_text("qz") == [], "tags are not ranked"
        assert holding(bank, "qz") == [2]
        assert holding(bank, "q") == [2]


# Holding


HELD = [
    NewCase("Call (415) 555-0186 now", plan="It cost 1,500 dollars"),
    NewCase("Call 4155550186", metadata={"price": 1500, "phone": "415.555.0186"}),
    NewCase("14155550186 is somebody else"),
    NewCase("nothing", source="Straße 12", tags=("C++", "snake_case")),
    NewCase("vitamin C\n and  running", external_id="id-77"),
    NewCase("...!?"),
    NewCase("我的电话是4155550186号"),
]


HOLDERS = [
    ("415-555-0186", [1, 2, 7]),
    ("5550186", [1, 2]),
    ("1500", [1, 2]),
    ("1,500 dollars", [1]),
    ("STRASSE", [4]),
    ("c++", [4]),
    ("c", [4, 5]),
    ("C and running", [5]),
    ("case", [4]),
    ("id-77", [5]),
    ("call", [1, 2]),
    ("call 4155550186", [1, 2]),
    ("cal", []),
    ("run", []),
    ("is the", []),
    ("电话", [7]),
]


def test_every_case_that_holds_a_string_is_among_the_candidates(styled):
    styled.add(HELD)
    for string, expected in HOLDERS:
        maybe = styled.get(holding(styled, string))
        found = [c.id for c in maybe if any(holds(w, string) for w in all_words(c))]
        assert found == expected, string


def test_a_string_without_letters_or_digits_cannot_be_told_from_the_index_of_words(file_bank):
    file_bank.add(HELD)
    assert holding(file_bank, "!?") is None
    assert holding(file_bank, "🙂") is None
    assert holding(file_bank, "") is None


def test_candidates_for_strings_leave_nothing_out(styled):
    # The slow twin: every case of the bank is asked whether it holds the string.
    rng = random.Random(9)
    parts = [
        "ab",
        "b",
        "run",
        "runs",
        "12",
        "1,500",
        "1500",
        "415 555 0186",
        "4155550186",
        "京",
        "北京",
    ]
    parts += ["c++", "the", "is", "-", "x_y", "é", "Ω"]
    texts = [" ".join(rng.choices(parts, k=rng.randint(1, 6))) for _ in range(100)]
    styled.add(
        [NewCase(t, tags=(rng.choice(parts),), metadata={"n": rng.choice(parts)}) for t in texts]
    )
    stored = styled.list(limit=1000)
    seen = 0
    for _ in range(80):
        string = rng.choice(["", " "]).join(rng.choices(parts, k=rng.randint(1, 3)))
        expected = [c.id for c in stored if any(holds(w, string) for w in all_words(c))]
        maybe = holding(styled, string)
        assert maybe is None or set(expected) <= set(maybe), string
        seen += len(expected)
    assert seen > 60


def test_a_text_beyond_the_limits_of_a_tsvector_is_still_found(postgres_url):
    with CaseBank.open(postgres_url) as bank:
        many = " ".join(f"w{i}x" for i in range(45_000))
        bank.add(
            [
                NewCase("harbour " * 300 + "captain lost"),  # more positions than one lexeme has
                NewCase(" ".join(["word"] * 17_000) + " at the end"),  # a position beyond the last
                NewCase(many + " astrolabe"),  # more lexemes than fit
                NewCase("harbour"),
            ]
        )
        assert holding(bank, "harbour captain lost") == [1, 3]
        assert holding(bank, "word at the end") == [2, 3]
        assert holding(bank, "astrolabe") == [3], "what was cut off may hold anything"
        assert holding(bank, "harbour") == [1, 3, 4]
        assert wrong_rows(bank) == []


# Copies


def varied(rng, text):
    """A text with a few changes, some near-verbatim, some more than that."""
    letters = list(text)
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        at = rng.choice([0, len(letters), rng.randint(0, len(letters))])
        if rng.random() < 0.5:
            letters.insert(at, rng.choice("abc 9"))
        elif letters:
            letters.pop(min(at, len(letters) - 1))
    changed = "".join(letters)
    return rng.choice([changed, changed.upper(), changed.replace(" ", "\n")])


def test_every_near_verbatim_copy_is_among_the_candidates(styled):
    # The slow twin: all pairs.
    rng = random.Random(10)
    texts = []
    for _ in range(24):
        size = rng.choice([1, 3, 7, 8, 9, 12, 30, 80, 200])
        base = "".join(rng.choice("abcdefg  ") for _ in range(size)) or "x"
        base = rng.choice([base, " ".join(rng.choices(WORDS, k=1 + size // 8))])
        texts += [t for t in [base, *(varied(rng, base) for _ in range(4))] if t.strip()]
    styled.add([NewCase(t) if i % 2 else NewCase(t, plan="so") for i, t in enumerate(texts)])
    stored = {case.id: spoken(case) for case in styled.list(limit=1000)}
    pairs = 0
    for id_, said in stored.items():
        expected = {other for other, words in stored.items() if near_verbatim(said, words)}
        maybe = set(alike(styled, said))
        assert expected <= maybe
        assert id_ in maybe
        pairs += len(expected) - 1
    assert pairs > 40


def test_a_copy_may_lack_a_word_although_it_has_all_its_pieces(file_bank):
    # Why words could not find copies: those of the first are no longer all in the second.
    first = "internationalise, international, nationalise: " + "so it was told by the captain " * 2
    second = first.replace("internationalise, ", "")
    assert grams(" internationalise ") - grams(second) < grams(" internationalise ")
    file_bank.add([NewCase(first), NewCase(second)])
    assert (2 in alike(file_bank, first)) >= near_verbatim(first, second)


def test_random_texts_are_no_candidates(file_bank):
    rng = random.Random(11)
    file_bank.add([NewCase(" ".join(rng.choices(WORDS, k=20))) for _ in range(300)])
    case = file_bank.get([7])[0]
    assert len(alike(file_bank, spoken(case))) < 30


# Coverage


def test_every_case_with_the_share_of_words_is_among_the_candidates(bank):
    rng = random.Random(12)
    bank.add([NewCase(" ".join(rng.choices(WORDS, k=rng.randint(1, 8)))) for _ in range(120)])
    stored = bank.list(limit=1000)
    found = 0
    for share in (0.2, 0.5, 0.8, 1.0):
        for _ in range(8):
            text = "the " + " ".join(rng.sample(WORDS, k=rng.randint(1, 5)))
            expected = {c.id for c in stored if coverage(text, spoken(c)) >= share}
            assert expected <= set(covering(bank, text, share))
            found += len(expected)
    assert found > 100
    assert covering(bank, "...", 0.5) == []


def test_with_trigrams_the_best_cases_are_looked_at(bank_location):
    with CaseBank.open(bank_location, config=BankConfig(lexical="trigrams")) as bank:
        bank.add([NewCase("harbour captain"), NewCase("ledger")])
        assert covering(bank, "captain of the harbour", 0.8) == [1]


# In the bank's transactions


def test_the_index_equals_one_made_anew_after_any_history(styled):
    rng = random.Random(13)

    def said():
        return " ".join(rng.choices([*WORDS, "415-555-0186", "北京", "x"], k=rng.randint(1, 9)))

    def case():
        return NewCase(
            said(),
            plan=rng.choice([None, said(), {"steps": [said()]}]),
            tags=tuple(rng.sample(WORDS, k=rng.randint(0, 2))),
            source=rng.choice([None, said()]),
            metadata=rng.choice([{}, {"n": 7, "deep": [said()]}]),
        )

    known = []
    for step in range(60):
        what = rng.choice(["add", "batch", "update", "upsert", "merge", "remove", "fail"])
        if what == "add":
            known += styled.add([case()])
        elif what == "batch":
            known += styled.add([case() for _ in range(5)])
        elif what == "upsert":
            new = case()
            name = f"e{rng.randint(0, 5)}"
            new = NewCase(new.query, plan=new.plan, tags=new.tags, external_id=name)
            known = list(dict.fromkeys([*known, *styled.add([new], upsert=True)]))
        elif what == "merge":
            new = NewCase("harbour register", tags=(rng.choice(WORDS),))
            known = list(dict.fromkeys([*known, *styled.add([new], on_duplicate="merge")]))
        elif what == "fail":
            with pytest.raises(RuntimeError):
                half_way(styled, known)
        elif known and what == "update":
            styled.update(rng.choice(known), {"query": said(), "source": said()})
        elif known:
            gone = known.pop(rng.randrange(len(known)))
            styled.forget(ByIds((gone,)))
        if step % 6 == 0 and known:
            assert wrong_rows(styled) == []
    assert wrong_rows(styled) == []
    assert len(known) == styled.count() > 10


def half_way(bank, known):
    with bank._store.write() as connection:
        remove_words(connection, 1, known)
        raise RuntimeError


def test_an_index_that_is_not_what_the_texts_say_is_noticed(styled):
    styled.add([NewCase("harbour"), NewCase("captain"), NewCase("ledger")])
    store = styled._store
    with store.write() as connection:
        number = namespace_state(connection, store.keys, "default").id
        assert lexical.remove(connection, number, [2, 77]) == 1
        assert lexical.remove(connection, number, []) == 0
    assert wrong_rows(styled) == [2]
    with store.write() as connection:
        lexical.remove(connection, number, [3])
        lexical.add(connection, number, [Entry(3, "other words", "")], store.lexical)
        lexical.add(connection, number, [Entry(9, "too many", "")], store.lexical)
        lexical.add(connection, number, [], store.lexical)
    assert wrong_rows(styled) == [2, 3, 9]


def test_a_dropped_index_leaves_the_others(bank):
    bank.add([NewCase("harbour")], namespace="one")
    bank.add([NewCase("harbour")], namespace="two")
    store = bank._store
    with store.write() as connection:
        lexical.drop(connection, namespace_state(connection, store.keys, "one").id)
    assert ids(bank.search_text("harbour", namespace="two")) == [2]


def test_a_bank_without_the_secret_of_its_index_says_so(file_bank):
    file_bank.add([NewCase("harbour")])
    with file_bank._store.write() as connection:
        connection.execute(meta.delete().where(meta.c.key == SECRET))
    with pytest.raises(BankUnavailable, match="lost the row lexical_secret"):
        file_bank.search_text("harbour")


def test_no_word_stands_in_the_index(styled):
    styled.add([NewCase("harbourmaster 4155550186", tags=("quadrant",), source="sextant")])
    engine = styled._store.database.engine
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            found = connection.exec_driver_sql("SELECT * FROM lexical_words").all()
        else:
            found = []
            for part in ("content", "data", "idx", "docsize", "config"):
                rows = connection.exec_driver_sql(f"SELECT * FROM lexical_1_{part}")
                found += rows.all()
    held = repr(found)
    for word in ("harbour", "arb", "4155550186", "quadrant", "sextant", "ext"):
        assert word not in held


def test_stems_decide_what_matches_on_both_engines_alike(bank):
    rng = random.Random(14)
    vocabulary = ["run", "running", "runner", "relate", "relation", "connect", "connection"]
    vocabulary += ["happy", "happily", "tie", "ties"]
    said = [" ".join(rng.choices(vocabulary, k=4)) for _ in range(80)]
    bank.add([NewCase(words) for words in said])
    for query in vocabulary:
        expected = [
            i for i, words in enumerate(said, 1) if stem(query) in map(stem, word_list(words))
        ]
        assert sorted(ids(bank.search_text(query, 100))) == expected
