//! Failures that users of voice systems report where speech is played, and the rules of the protocol for `speak` and `clear`,
//! one scenario each.

use super::*;

// The state says "speaking" but nothing is heard, or there is silence after an interruption.

#[test]
fn complaint_2_it_is_playing_only_while_samples_are_heard() {
    let mut stage = Stage::new(LEAD);
    let key = stage.say("Slow.");
    assert!(
        !stage.queue.is_playing(stage.now),
        "nothing was synthesised"
    );
    stage.synthesise(key, CHUNK);
    assert!(stage.queue.is_playing(stage.now));
    stage.pass(CHUNK);
    assert!(!stage.queue.is_playing(stage.now), "synthesis is late");
    assert!(!stage.queue.is_idle());
    stage.done(key);
    assert!(stage.queue.is_idle());
}

#[test]
fn complaint_2_after_an_interruption_the_next_words_are_heard_at_once() {
    let mut stage = Stage::new(LEAD);
    let first = stage.say("I could go on and on.");
    stage.synthesise_all(first, ms(3_000));
    stage.pass(ms(1_000));
    stage.clear();
    assert!(!stage.queue.is_playing(stage.now));
    let next = stage.say("Yes?");
    stage.synthesise_all(next, ms(400));
    assert_eq!(stage.known[&next].left[0].0, stage.now);
    stage.pass(ms(400));
    assert_eq!(
        stage.end(first),
        Some((ms(1_000), &interrupted(ms(1_000), "I")))
    );
    assert_eq!(stage.end(next), Some((ms(1_400), &complete(ms(400)))));
}

#[test]
fn complaint_2_a_protected_utterance_that_fails_leaves_nothing_uninterruptible() {
    let mut stage = Stage::new(LEAD);
    let protected = stage.say_protected("Listen to this.");
    for _ in 0..50 {
        stage.synthesise(protected, CHUNK);
    }
    stage.clear();
    assert_eq!(stage.end(protected), None);
    stage.pass(ms(400));
    stage.fail(protected);
    let next = stage.say("Next.");
    stage.synthesise_all(next, ms(500));
    stage.pass(ms(100));
    stage.clear();
    assert_eq!(
        stage.end(protected),
        Some((ms(500), &interrupted(ms(500), "Listen")))
    );
    assert_eq!(stage.end(next), Some((ms(500), &interrupted(ms(0), ""))));
    assert!(stage.queue.is_idle());
}

#[test]
fn complaint_2_a_failure_does_not_hold_up_what_comes_behind_it() {
    let mut stage = Stage::new(LEAD);
    let first = stage.say("One.");
    let second = stage.say("Two.");
    let third = stage.say("Three.");
    stage.synthesise_all(first, ms(500));
    stage.fail(second);
    stage.synthesise_all(third, ms(500));
    stage.pass(ms(1_000));
    assert_eq!(stage.end(first), Some((ms(500), &complete(ms(500)))));
    assert_eq!(stage.end(second), Some((ms(500), &failed(ms(0), ""))));
    assert_eq!(stage.end(third), Some((ms(1_000), &complete(ms(500)))));
}

// The last words are cut at hang-up.

#[test]
fn complaint_5_complete_means_that_the_last_sample_was_heard() {
    let mut stage = Stage::new(LEAD);
    let key = stage.say("Goodbye.");
    stage.synthesise_all(key, ms(1_013));
    stage.pass(ms(850));
    assert_eq!(stage.known[&key].left.len(), 51, "everything has left");
    assert!(!stage.queue.is_idle(), "but was not heard");
    stage.pass(ms(162));
    assert_eq!(stage.end(key), None);
    stage.pass(ms(1));
    assert_eq!(stage.end(key), Some((ms(1_013), &complete(ms(1_013)))));
    assert!(stage.queue.is_idle());
}

#[test]
fn complaint_5_what_synthesis_made_before_it_failed_is_heard() {
    let mut stage = Stage::new(LEAD);
    let key = stage.say("Half of this.");
    for _ in 0..30 {
        stage.synthesise(key, CHUNK);
    }
    stage.fail(key);
    stage.pass(ms(600));
    assert_eq!(stage.end(key), Some((ms(600), &failed(ms(600), "Half of"))));
}

// Memory grows until a restart.

#[test]
fn complaint_8_waiting_utterances_and_text_are_bounded_and_a_refusal_changes_nothing() {
    let mut stage = Stage::new(LEAD);
    for _ in 0..MAX_UTTERANCES {
        stage.say("Wait.");
    }
    let replace = Speak {
        replace: true,
        ..speak(&"a".repeat(MAX_TEXT_BYTES + 1))
    };
    assert_eq!(stage.speak(speak("No.")), Err(Overloaded::Utterances));
    assert_eq!(stage.speak(replace), Err(Overloaded::Text));
    assert_eq!(stage.events, []);
    let replace = Speak {
        replace: true,
        ..speak("Now.")
    };
    stage.speak(replace).unwrap().unwrap();
    assert_eq!(stage.events.len(), MAX_UTTERANCES);

    let mut stage = Stage::new(LEAD);
    stage.say("First.");
    stage.say(&"a".repeat(MAX_TEXT_BYTES));
    assert_eq!(stage.speak(speak("a")), Err(Overloaded::Text));
}

#[test]
fn complaint_8_speaking_and_clearing_behind_a_protected_utterance_is_bounded() {
    let mut stage = Stage::new(LEAD);
    let protected = stage.say_protected("Terms and conditions.");
    for _ in 0..50 {
        stage.synthesise(protected, CHUNK);
    }
    let mut refused = 0;
    for _ in 0..1_000 {
        let replace = Speak {
            replace: true,
            ..speak(&"word ".repeat(1_000))
        };
        refused += usize::from(stage.speak(replace).is_err());
    }
    assert_eq!(refused, 1_000 - MAX_UTTERANCES);
    let text: usize = stage.queue.utterances.iter().map(|u| u.script.len()).sum();
    assert!(text < MAX_TEXT_BYTES, "cleared text is not kept");
}

#[test]
fn complaint_8_an_utterance_that_never_ends_is_bounded() {
    let mut stage = Stage::new(LEAD);
    let token = Speak {
        flush: false,
        ..speak("A sentence. ")
    };
    let said = (0..10_000)
        .take_while(|_| stage.speak(token.clone()).is_ok())
        .count();
    assert_eq!(said, MAX_TEXT_BYTES / token.text.len());
    assert!(stage.speak(speak("")).is_ok(), "it can be ended");
}

#[test]
fn complaint_8_synthesis_waits_while_enough_sound_waits() {
    let mut stage = Stage::new(LEAD);
    let key = stage.say("A very long story.");
    let mut brought = 0;
    while stage.synthesise(key, CHUNK) {
        brought += 1;
    }
    assert_eq!(CHUNK * brought, MAX_SOUND + LEAD);
    assert!(!stage.queue.wants_sound());
    stage.pass(CHUNK);
    assert!(stage.queue.wants_sound());
    stage.synthesise(key, CHUNK);
    stage.clear();
    assert!(stage.queue.wants_sound());
    assert!(
        stage.synthesise(key, CHUNK),
        "what is stale is taken and dropped"
    );
}

// There are gaps and crackle on socket audio.

#[test]
fn complaint_10_ten_minutes_of_utterances_follow_each_other_without_gap_or_drift() {
    let mut stage = Stage::new(LEAD);
    let utterance = ms(3_007);
    let count = 200;
    let mut asked = 0;
    while stage.now - stage.start < Duration::from_mins(10) {
        if asked < count && stage.known.len() - stage.ended() < 4 {
            stage.say("Three seconds.");
            asked += 1;
        }
        // Twice as fast as real time.
        if let Some(key) = stage.running() {
            let brought = CHUNK * stage.known[&key].brought as u32;
            stage.synthesise(key, (utterance - brought).min(CHUNK));
            if brought + CHUNK >= utterance {
                stage.done(key);
            }
        }
        stage.pass(ms(10));
    }
    stage.pass(ms(5_000));
    assert_eq!(stage.ended(), count);
    for (number, &key) in stage.known.keys().enumerate() {
        let end = utterance * (number as u32 + 1);
        assert_eq!(
            stage.end(key),
            Some((end, &complete(utterance))),
            "utterance {number}"
        );
    }
}

#[test]
fn complaint_10_sound_after_an_underrun_is_neither_rushed_nor_late() {
    let mut stage = Stage::new(LEAD);
    let key = stage.say("Slow synthesis.");
    // Each chunk comes 5 ms after the one before was played.
    for _ in 0..100 {
        stage.synthesise(key, CHUNK);
        stage.pass(ms(25));
    }
    assert_eq!(stage.known[&key].until, Some(stage.now - ms(5)));
    // Then synthesis is fast again: only the lead leaves at once.
    for _ in 0..50 {
        stage.synthesise(key, CHUNK);
    }
    assert_eq!(stage.known[&key].left.len(), 110);
    stage.pass(ms(1_000));
    stage.done(key);
    assert_eq!(stage.end(key), Some((ms(3_500), &complete(ms(3_000)))));
}

#[test]
fn complaint_10_a_listener_who_was_not_ready_gets_the_lead_and_no_burst() {
    let mut stage = Stage::new(LEAD);
    let key = stage.say("Hello.");
    stage.hold(true);
    stage.synthesise_all(key, ms(1_000));
    stage.pass(ms(5_000));
    assert_eq!(stage.queue.next_wakeup(stage.now), None);
    stage.hold(false);
    assert_eq!(stage.known[&key].left.len(), 10);
    stage.pass(ms(1_000));
    assert_eq!(stage.end(key), Some((ms(6_000), &complete(ms(1_000)))));
}

#[test]
fn without_pacing_everything_leaves_at_once_and_is_still_heard_in_its_time() {
    let mut stage = Stage::new(Duration::MAX);
    let key = stage.say("All of it.");
    stage.synthesise_all(key, ms(3_000));
    assert_eq!(stage.known[&key].left.len(), 150);
    stage.pass(ms(3_000));
    assert_eq!(stage.end(key), Some((ms(3_000), &complete(ms(3_000)))));
}

// The protocol, section 3.

#[test]
fn tokens_are_spoken_sentence_by_sentence() {
    let mut stage = Stage::new(LEAD);
    let token = |text: &str, id: Option<&str>| Speak {
        id: id.map(str::to_owned),
        ..token(text, "")
    };
    let key = stage.speak(token("Hel", None)).unwrap().unwrap();
    assert_eq!(stage.running(), None);
    stage.speak(token("lo there. How", Some("a"))).unwrap();
    assert_eq!(
        (stage.running(), &*stage.known[&key].text),
        (Some(key), "Hello there. ")
    );
    stage.speak(token(" are you", None)).unwrap();
    assert_eq!(stage.known[&key].text, "Hello there. ");
    assert_eq!(stage.say(""), key);
    assert_eq!(stage.known[&key].text, "Hello there. How are you");
    assert!(stage.known[&key].text_ended);
    stage.synthesise_all(key, ms(100));
    stage.pass(ms(100));
    assert_eq!(stage.kinds(key), [&EventKind::Started, &complete(ms(100))]);
    assert!(
        stage
            .events
            .iter()
            .all(|event| event.id.as_deref() == Some("a"))
    );
}

fn token(text: &str, id: &str) -> Speak {
    Speak {
        flush: false,
        id: Some(id.to_owned()),
        ..speak(text)
    }
}

#[test]
fn another_id_begins_another_utterance_and_ends_the_one_before() {
    let mut stage = Stage::new(LEAD);
    let one = stage.speak(token("One and", "a")).unwrap().unwrap();
    let two = stage.speak(token("Two", "b")).unwrap().unwrap();
    assert_eq!(stage.known[&one].text, "One and");
    assert!(stage.known[&one].text_ended);
    stage.synthesise_all(one, ms(100));
    stage.say("");
    stage.synthesise_all(two, ms(100));
    stage.pass(ms(300));
    assert_eq!(stage.end(one), Some((ms(100), &complete(ms(100)))));
    assert_eq!(stage.end(two), Some((ms(200), &complete(ms(100)))));
    // What has been played may be named again.
    let again = stage.speak(token("One.", "a")).unwrap();
    assert!(again.is_some_and(|key| key > two));
}

#[test]
fn tokens_in_flight_do_not_reopen_what_was_cut_and_the_next_answer_has_events_of_its_own() {
    let mut stage = Stage::new(LEAD);
    let cut = stage.speak(token("It was a dark. ", "a")).unwrap().unwrap();
    stage.synthesise(cut, ms(500));
    stage.pass(ms(100));
    stage.clear();
    // The model had not been stopped yet.
    assert_eq!(stage.speak(token("And stormy ", "a")), Ok(None));
    assert_eq!(stage.speak(token("night.", "a")), Ok(None));
    let end = Speak {
        flush: true,
        ..token("", "a")
    };
    assert_eq!(stage.speak(end), Ok(None));
    let next = stage.speak(token("Yes? ", "b")).unwrap().unwrap();
    assert_eq!(stage.running(), Some(next));
    assert_eq!(stage.known[&next].text, "Yes? ");
    stage.say("");
    stage.synthesise_all(next, ms(100));
    stage.pass(ms(500));
    assert_eq!(stage.kinds(cut).len(), 2);
    assert_eq!(stage.kinds(next), [&EventKind::Started, &complete(ms(100))]);
}

#[test]
fn one_id_is_cleared_and_what_waits_behind_it_is_spoken() {
    let mut stage = Stage::new(LEAD);
    let whole = |text, id| Speak {
        flush: true,
        ..token(text, id)
    };
    let playing = stage.speak(whole("First.", "a")).unwrap().unwrap();
    let cleared = stage.speak(whole("Second.", "b")).unwrap().unwrap();
    let last = stage.speak(whole("Third.", "c")).unwrap().unwrap();
    stage.synthesise_all(playing, ms(1_000));
    stage.pass(ms(300));
    stage.clear_id("b");
    stage.clear_id("nobody");
    stage.synthesise_all(last, ms(100));
    stage.pass(ms(2_000));
    assert_eq!(stage.end(playing), Some((ms(1_000), &complete(ms(1_000)))));
    assert_eq!(
        stage.end(cleared),
        Some((ms(1_000), &interrupted(ms(0), "")))
    );
    assert_eq!(stage.end(last), Some((ms(1_100), &complete(ms(100)))));
}

#[test]
fn a_blank_text_completes_at_once_without_synthesis() {
    let mut stage = Stage::new(LEAD);
    let first = stage.say("Something.");
    let blank = stage.say(" \n");
    assert_eq!(stage.kinds(blank), [&complete(ms(0))]);
    assert_eq!(stage.kinds(first), [] as [&EventKind; 0]);
}

#[test]
fn a_protected_utterance_is_heard_whole_and_what_waits_around_it_is_cleared() {
    let mut stage = Stage::new(LEAD);
    let before = stage.say("Before.");
    let protected = stage.say_protected("This call is recorded.");
    let behind = stage.say("Behind.");
    stage.synthesise_all(before, ms(1_000));
    stage.synthesise_all(protected, ms(1_000));
    stage.pass(ms(500));
    stage.clear();
    assert_eq!(
        stage.end(before),
        Some((ms(500), &interrupted(ms(500), "")))
    );
    assert_eq!(stage.known[&protected].left[0].0, stage.now);
    let replaced = Speak {
        replace: true,
        ..speak("New.")
    };
    let new = stage.speak(replaced).unwrap().unwrap();
    stage.synthesise_all(new, ms(300));
    stage.pass(ms(2_000));
    assert_eq!(
        stage.end(protected),
        Some((ms(1_500), &complete(ms(1_000))))
    );
    assert_eq!(
        stage.end(behind),
        Some((ms(1_500), &interrupted(ms(0), "")))
    );
    assert_eq!(stage.end(new), Some((ms(1_800), &complete(ms(300)))));
}

#[test]
fn what_follows_protected_sound_to_the_listener_is_cut_and_what_goes_before_it_is_not() {
    let mut stage = Stage::new(LEAD);
    let before = stage.say("Ah.");
    let protected = stage.say_protected("Well.");
    stage.synthesise_all(before, ms(60));
    stage.synthesise_all(protected, ms(60));
    let behind = stage.say("So.");
    stage.synthesise_all(behind, ms(500));
    stage.clear();
    stage.pass(ms(500));
    assert_eq!(stage.end(before), Some((ms(60), &complete(ms(60)))));
    assert_eq!(stage.end(protected), Some((ms(120), &complete(ms(60)))));
    assert_eq!(stage.end(behind), Some((ms(120), &interrupted(ms(0), ""))));
}

#[test]
fn clear_leaves_a_protected_utterance_open_and_replace_closes_it() {
    let mut stage = Stage::new(LEAD);
    let protected = Speak {
        flush: false,
        allow_interruption: false,
        ..speak("Please hold the")
    };
    let key = stage.speak(protected).unwrap().unwrap();
    stage.clear();
    let more = Speak {
        flush: false,
        ..speak(" line")
    };
    assert_eq!(stage.speak(more), Ok(Some(key)));
    let replace = Speak {
        replace: true,
        ..speak("Hello.")
    };
    assert_ne!(stage.speak(replace), Ok(Some(key)));
    assert_eq!(stage.known[&key].text, "Please hold the line");
    assert!(stage.known[&key].text_ended);
}

#[test]
fn the_end_of_a_session_cuts_what_is_protected_too() {
    let mut stage = Stage::new(LEAD);
    let protected = stage.say_protected("Terms.");
    stage.synthesise(protected, ms(500));
    stage.queue.stop(stage.now);
    let key = protected;
    assert_eq!(
        stage.queue.poll(stage.now),
        Some(Output::Command(Command::Cancel { utterance: key }))
    );
    let Some(Output::Event(event)) = stage.queue.poll(stage.now) else {
        panic!("no end is told");
    };
    assert_eq!(event.kind, interrupted(ms(0), ""));
    assert!(stage.queue.is_idle() && !stage.queue.is_playing(stage.now));
}

// Waking for each chunk costs several times what the chunk does.

#[test]
fn a_listener_who_is_ahead_gets_chunks_when_a_third_of_the_lead_is_free() {
    for (lead, steps) in [
        (LEAD, [(60, 13), (120, 16), (180, 19)]),
        (ms(120), [(40, 8), (80, 10), (120, 12)]),
        // A room's: each by itself.
        (ms(40), [(20, 3), (40, 4), (60, 5)]),
        // Never many at once.
        (ms(800), [(60, 43), (120, 46), (180, 49)]),
    ] {
        let mut stage = Stage::new(lead);
        let key = stage.say("Long.");
        stage.synthesise_all(key, ms(1_000));
        for (at, left) in steps {
            let wake = stage.next_wakeup().unwrap();
            assert_eq!(wake - stage.start, ms(at));
            stage.pass(wake - stage.now);
            assert_eq!(stage.known[&key].left.len(), left);
        }
        stage.pass(ms(1_000));
        assert_eq!(stage.end(key), Some((ms(1_000), &complete(ms(1_000)))));
    }
}
