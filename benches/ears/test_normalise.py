"""What is the same word to the ears' bench, and what is not: `python -m pytest benches/ears`, or this file alone."""

from normalise import errors, normalise


def wrong(said, heard):
    return errors(said, heard)["wrong"]


def test_case_punctuation_contractions_and_spelling_are_no_errors():
    assert wrong("It's the colour of Mister Smith's car, isn't it?", "it is the color of mr smith's car is not it") == 0


def test_numbers_are_the_same_spelled_and_in_digits():
    assert wrong("press one, or twenty-three", "Press 1 or 23") == 0
    assert wrong("two nine three four zero", "29340") == 0
    assert wrong("two nine three four zero", "2-9-3-4-0") == 0
    assert wrong("about twenty five hundred bits", "about 2500 bits") == 0


def test_a_digit_more_or_less_or_another_is_an_error():
    assert wrong("two nine three four zero", "2934") == 1
    assert wrong("two nine three four zero", "29350") == 1


def test_call_signs_may_be_written_together_or_apart():
    assert wrong("This is W5ABC", "This is W5 ABC.") == 0
    assert normalise("VE9QRP") == "ve 9 qrp"


def test_letters_of_call_signs_are_joined_and_ordinals_stay_whole():
    assert wrong("This is KA9Q", "this is K A9Q") == 0
    assert normalise("bits per second") == "bits per 2nd"


def test_one_is_a_number_alone_and_among_others():
    assert wrong("press one", "Press 1.") == 0
    assert wrong("testing 1 2 3 4 5, 5 4 3 2 1", "testing one two three four five five four three two one") == 0


def test_nobody_hears_an_apostrophe_of_a_genitive():
    assert wrong("the user's mail box can't accept more", "The users mailbox cannot accept more.") == 0
    assert wrong("Feed'st thy light's flame", "feedst thy lights flame") == 0
    assert wrong("it's here and that's all", "it is here and that is all") == 0


def test_hyphens_part_words():
    assert wrong("an ill disposed, cold hearted man", "an ill-disposed, cold-hearted man") == 0


def test_hesitations_are_not_counted():
    assert wrong("and I'm using a radio", "And, uh, I'm using a, um, radio.") == 0


def test_left_out_invented_and_other_words_are_errors():
    counted = errors("press one to send a reply", "press one to end a reply now")
    assert (counted["words"], counted["substituted"], counted["invented"], counted["left_out"]) == (6, 1, 1, 0)
    assert errors("press one", "")["left_out"] == 2
    assert errors("press one", "...")["wrong"] == 2


def test_invented_words_where_nobody_spoke_are_counted():
    assert errors("", "thank you for watching") == {
        "words": 0, "wrong": 4, "substituted": 0, "left_out": 0, "invented": 4,
    }


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(name.replace("_", " "))
