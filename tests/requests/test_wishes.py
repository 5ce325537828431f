"""Which turns are wishes to forget, which are acknowledgements, and which only use the words."""

from __future__ import annotations

import time

import pytest

from memory.requests import Act, recognise

WISHES = """
Would you mind no longer keeping my address on file?
Could you please no longer keep my address?
I would rather you no longer stored my number.
Please stop keeping my address on file.
Can you forget my phone number?
Could you please not keep my home address?
I'd rather you didn't remember my diagnosis.
Please delete the temporary numbers and the voicemail note from the shared assistant memory.
After Tuesday is done, please delete the temporary numbers from memory.
Forget that I told you about my sister's divorce.
I don't want that old shared-line contact kept at all.
Please scrub the exact old label from routine memory and keep only the wording 'confidential'.
Please retire and stop recalling the old override abcd_TMP_31A8-QL2K now that the new one is active.
Deletion request: remove the exact sponsor mapping 'Acme Biologics' from shared memory.
The code AB-1234 should not be recoverable later.
Remove it now. Delete Juniper House 415-555-0134 and delete ask for Nia.
Do not keep that old backup anywhere in my chart.
Wipe everything you know about my health.
Forget everything I told you last week.
Please stop remembering my birthday.
Would you mind deleting my old email address?
I want my salary history erased.
I would like you to forget my ex's name.
My new number is 555-0199; forget the old one.
I live at 9 Oak Lane now, forget the old address.
Please forget that.
You can drop the note about my allergy now.
I need you to erase my old password hunter2 from your memory.
Drop the nickname Bobby; keep only Robert.
Let's pretend I never told you about the tattoo.
The badge AST-7704 should be removed from memory.
Please make sure my old address is deleted.
Replace my number 415-555-0186 with 415-555-0123.
Could the old line please be deleted?
Would it be possible to erase my old address?
I am asking you to forget my diagnosis.
415-555-0186 is no longer needed, please delete.
Let's remove the Harbor House number from memory.
Please have the Harbor House number deleted.
I request deletion of the Harbor House contact.
Now that I moved, delete Harbor House 415-555-0100.
Use only my mobile now and delete the old number 415-555-0100 from memory.
For privacy, delete Harbor House 415-555-0100 from memory.
I withdraw consent for storing the Harbor House number.
Deletion request: Harbor House, 415-555-0100, Kim.
내 집 주소 잊어줘
병원 기록 지워줘
请忘掉我的地址
私の住所を忘れてください
Bitte vergiss meine Adresse
""".strip().splitlines()

NO_WISHES = """
Don't forget to call the plumber.
Never delete my notes.
Please do not remove the medication list from my chart.
She said 'forget my number' and hung up.
The note says delete after reading.
My doctor told me to delete the app.
Did you delete my number?
What did I ask you to forget?
What was the deleted backup number?
Do you want the old number fully removed from the chart?
If you delete my data, what happens?
I never asked you to forget anything.
Please keep the deleted details removed.
Deleted contact details are not available.
Delete the temp files from my laptop.
How do I remove a stain from a shirt?
Remove the bandage after two days.
Remove her ride access after today.
Can you help me remove the virus from my computer?
Please write a script that deletes the rows of the table.
Take one tablet and clear liquids only.
Remove the seeds and drop the slices into the pan.
If you move Monday, we can switch to direct mobile only and remove the backup line.
I do not want that number used after I leave.
Forget it, let's move on.
Forget the pizza, get a salad.
I forgot my password.
I forget her name.
Remember to delete the spam emails from my inbox
물 주는 거 잊지 마
不要忘记吃药
Vergiss nicht die Milch
薬を忘れないで
My phone number is 415-555-0186.
And today, we sent a message loud and clear.
A driver must survive a botched heist and clear his name.
Then, scrub them with a soft sponge to remove any residue.
It's easy to get lost and forget that.
Then remove it with a spoon.
""".strip().splitlines()

ACKNOWLEDGEMENTS = """
Deletion request recorded for Pine Harbor Lodge, 415-555-0114, and ask for Elena.
Deletion request executed: remove the old backup number 510-555-0198 from active memory.
Confirmed. The earlier amount 3,900 USD is deleted from active memory. Only 4,120 USD remains.
Deleted temporary backup contact: Willow House desk 628-555-0191 ext 24, ask for Mara.
I documented a deletion request for Harbor Bridge House, 415-555-0188, and alias Kai.
I have deleted your old address 12 Elm Street.
Memory update: deleted Harbor House, 415-555-0100, and Kim.
Entry deleted: Harbor House 415-555-0100.
Patient requested deletion of Harbor House, 415-555-0100, and Kim.
Backup contact Harbor House, 415-555-0100, alias Kim deleted at patient request.
Your deletion request for Harbor House, 415-555-0100, is complete.
Cleanup notice: the earlier 3,390 USD amount has been removed from the active record.
""".strip().splitlines()


@pytest.mark.parametrize("text", WISHES)
def test_an_explicit_or_polite_wish_is_recognised(text):
    wish = recognise(text)
    assert wish is not None
    assert wish.act is Act.WISH


@pytest.mark.parametrize("text", NO_WISHES)
def test_what_only_uses_the_words_is_no_wish(text):
    assert recognise(text) is None


@pytest.mark.parametrize("text", ACKNOWLEDGEMENTS)
def test_an_acknowledgement_is_told_from_a_wish(text):
    wish = recognise(text)
    assert wish is not None
    assert wish.act is Act.ACKNOWLEDGEMENT


def test_what_a_wish_is_about_is_freed_of_place_time_reason_and_what_stays():
    wish = recognise(
        "Once the audit is done, please delete the old badge AST-7704 from active memory and keep "
        "only AST-7716, because it is retired. The blocker is final routing."
    )
    assert wish is not None
    assert wish.about == ("the old badge AST-7704",)
    assert wish.when == "Once the audit is done"
    assert "AST-7716" in wish.kept
    assert wish.rest == "The blocker is final routing."


def test_a_yes_to_an_offer_to_delete_is_a_wish_and_a_yes_to_anything_else_is_none():
    offer = "Do you want the old Rose Lodge number fully removed from the chart?"
    wish = recognise("Yes, please.", before=offer)
    assert wish is not None
    assert "Rose Lodge number" in wish.about[0]
    assert recognise("Yes, please.", before="Do you want the number sent by mail?") is None
    assert recognise("Yes, please.") is None


def test_both_halves_of_a_double_wish_are_found():
    wish = recognise(
        "Please stop remembering my wifi password, and delete the number 415-555-0186."
    )
    assert wish is not None
    assert "wifi password" in wish.about[0]
    assert "415-555-0186" in wish.about[0]


@pytest.mark.parametrize(
    "text", ["", " ", "?", "…", "'", "\n\n", "forget", "delete", "Please.", "İ"]
)
def test_scraps_of_text_are_read_without_a_fault(text):
    recognise(text)


def test_a_long_turn_is_read_in_time_that_grows_with_its_length():
    def seconds(text: str) -> float:
        started = time.perf_counter()
        recognise(text)
        return time.perf_counter() - started

    for piece in ("please forget ", "forget it. ", "잊 ", "a'", "keep (", "the note, and "):
        assert seconds(piece * 4000) < 2.0, piece


def test_the_text_of_a_wish_stays_out_of_its_repr():
    assert "0186" not in repr(recognise("Forget my number 415-555-0186."))
