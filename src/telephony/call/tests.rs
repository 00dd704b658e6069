//! Calls in virtual time.

use super::*;

const LIMITS: Limits = Limits {
    ringing: Duration::from_secs(30),
    duration: Duration::from_hours(1),
};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn status(status: CallStatus) -> Output {
    Output::Status(status)
}

fn hangup(cause: HangupCause) -> Output {
    Output::Status(CallStatus::Hangup(cause))
}

struct Clock {
    call: Call,
    now: Instant,
}

impl Clock {
    fn outbound() -> Self {
        let now = Instant::now();
        let call = Call::outbound(LIMITS, false, now);
        Self { call, now }
    }

    fn active() -> Self {
        let mut clock = Self::outbound();
        clock.give(Input::Answered);
        clock
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        self.call.handle(input, self.now)
    }

    /// Advances the time until the call acts; returns the actions and the time that passed.
    fn wait(&mut self) -> (Duration, Vec<Output>) {
        let began = self.now;
        loop {
            let Some(deadline) = self.call.deadline() else {
                return (self.now - began, Vec::new());
            };
            self.now = self.now.max(deadline);
            let outputs = self.call.handle(Input::Tick, self.now);
            if !outputs.is_empty() {
                return (self.now - began, outputs);
            }
        }
    }
}

fn refused(code: u16) -> Failure {
    Failure::Refused {
        code,
        reason: String::new(),
    }
}

fn told(code: u16, last: bool) -> Input {
    let code = (code > 0).then_some(code);
    Input::Notified(Notification { code, last })
}

/// The response to a REFER.
fn answered(attempt: u32, code: Option<u16>) -> Input {
    Input::Referred { attempt, code }
}

#[test]
fn a_call_rings_and_is_answered() {
    let mut clock = Clock::outbound();
    assert_eq!(clock.give(Input::Progress(100)), []);
    assert_eq!(
        clock.give(Input::Progress(180)),
        [status(CallStatus::Ringing)]
    );
    assert_eq!(clock.give(Input::Progress(183)), [], "told once");
    assert_eq!(clock.give(Input::Answered), [status(CallStatus::Active)]);
    assert_eq!(
        clock.give(Input::Ended),
        [hangup(HangupCause::Remote), Output::Over]
    );
    assert_eq!(clock.give(Input::Ended), [], "over is over");
    assert_eq!(clock.call.deadline(), None);
}

#[test]
fn refusals_have_causes() {
    for (code, cause) in [
        (486, HangupCause::Busy),
        (600, HangupCause::Busy),
        (603, HangupCause::Declined),
        (404, HangupCause::NotFound),
        (480, HangupCause::NoAnswer),
        (407, HangupCause::Unauthorized),
        (488, HangupCause::Media),
        (500, HangupCause::Failed),
        (302, HangupCause::Failed),
    ] {
        let mut clock = Clock::outbound();
        let outputs = clock.give(Input::Failed(refused(code)));
        assert_eq!(outputs, [hangup(cause), Output::Over], "{code}");
    }
}

#[test]
fn a_gateway_that_says_nothing_is_given_up_soon_and_a_telephone_that_rings_later() {
    let mut clock = Clock::outbound();
    let unreachable = vec![
        Output::Cancel,
        hangup(HangupCause::Unreachable),
        Output::Over,
    ];
    assert_eq!(clock.wait(), (SILENCE, unreachable));
    let mut clock = Clock::outbound();
    clock.give(Input::Progress(180));
    let no_answer = vec![Output::Cancel, hangup(HangupCause::NoAnswer), Output::Over];
    assert_eq!(clock.wait(), (LIMITS.ringing, no_answer));
}

#[test]
fn a_call_that_is_taken_back_before_the_answer_is_cancelled() {
    for input in [Input::HangUp(HangupCause::Local), Input::Left] {
        let mut clock = Clock::outbound();
        clock.give(Input::Progress(180));
        assert_eq!(
            clock.give(input),
            [Output::Cancel, hangup(HangupCause::Cancelled), Output::Over]
        );
    }
}

#[test]
fn a_call_that_lasts_too_long_or_is_silent_is_hung_up() {
    let mut clock = Clock::active();
    let too_long = vec![Output::Bye, hangup(HangupCause::TooLong), Output::Over];
    assert_eq!(clock.wait(), (LIMITS.duration, too_long));
    let mut clock = Clock::active();
    let silent = vec![Output::Bye, hangup(HangupCause::MediaTimeout), Output::Over];
    assert_eq!(clock.give(Input::Silent), silent);
}

#[test]
fn a_call_that_came_is_answered_when_somebody_hears_it_or_after_a_second() {
    let now = Instant::now();
    let answer = vec![Output::Answer, status(CallStatus::Active)];
    let inbound = || Clock {
        call: Call::inbound(LIMITS, now),
        now,
    };
    let mut clock = inbound();
    assert_eq!(clock.give(Input::Joined), []);
    assert_eq!(clock.give(Input::Heard), answer);
    let mut clock = inbound();
    clock.give(Input::Joined);
    assert_eq!(clock.wait(), (ANSWER_WITHIN, answer));
    let mut clock = inbound();
    let refused = vec![
        Output::Refuse(503),
        hangup(HangupCause::Failed),
        Output::Over,
    ];
    assert_eq!(clock.wait(), (JOIN_WITHIN, refused));
    let mut clock = inbound();
    assert_eq!(
        clock.give(Input::Cancelled),
        [hangup(HangupCause::Cancelled), Output::Over]
    );
}

#[test]
fn a_call_that_came_and_is_hung_up_before_the_answer_is_still_answered() {
    for joined in [false, true] {
        let now = Instant::now();
        let call = Call::inbound(LIMITS, now);
        let mut clock = Clock { call, now };
        if joined {
            clock.give(Input::Joined);
        }
        assert_eq!(
            clock.give(Input::Ended),
            [
                Output::Refuse(487),
                hangup(HangupCause::Cancelled),
                Output::Over
            ]
        );
    }
}

#[test]
fn a_call_that_was_given_up_while_it_was_answered_is_over() {
    let now = Instant::now();
    let call = Call::inbound(LIMITS, now);
    let mut clock = Clock { call, now };
    clock.give(Input::Joined);
    assert_eq!(clock.give(Input::Heard)[0], Output::Answer);
    assert_eq!(
        clock.give(Input::Cancelled),
        [hangup(HangupCause::Cancelled), Output::Over],
        "there is no dialog that could be hung up"
    );
}

#[test]
fn what_is_said_to_an_earlier_wish_is_not_said_to_the_next() {
    let mut clock = Clock::active();
    clock.give(Input::Transfer(seconds(20)));
    clock.wait();
    let begun = [Output::MuteRoom(true), Output::Refer(2)];
    assert_eq!(clock.give(Input::Transfer(seconds(20))), begun);
    for late in [Some(202), Some(603), None] {
        assert_eq!(clock.give(answered(1, late)), []);
    }
    assert_eq!(
        clock.give(answered(2, Some(202))),
        [Output::TransferAccepted]
    );
}

#[test]
fn a_transfer_that_succeeds_is_told_and_then_hung_up() {
    let mut clock = Clock::active();
    let begun = [Output::MuteRoom(true), Output::Refer(1)];
    assert_eq!(clock.give(Input::Transfer(seconds(20))), begun);
    // Some send NOTIFY before the response.
    assert_eq!(clock.give(told(100, false)), []);
    assert_eq!(
        clock.give(answered(1, Some(202))),
        [Output::TransferAccepted]
    );
    assert_eq!(
        clock.give(told(200, true)),
        [Output::Transferred(Outcome::Done)]
    );
    let bye = vec![Output::Bye, hangup(HangupCause::Transferred), Output::Over];
    assert_eq!(clock.wait(), (seconds(1), bye));
}

#[test]
fn a_transfer_that_fails_leaves_the_call_as_it_was() {
    let failed = |outcome| vec![Output::MuteRoom(false), Output::Transferred(outcome)];
    let ends: [(Vec<Input>, Outcome); 4] = [
        (vec![answered(1, Some(603))], Outcome::Rejected(603)),
        (
            vec![answered(1, Some(202)), told(180, false), told(486, true)],
            Outcome::Rejected(486),
        ),
        (vec![answered(1, Some(202)), told(0, true)], Outcome::Untold),
        (vec![answered(1, None)], Outcome::Rejected(408)),
    ];
    for (inputs, outcome) in ends {
        let mut clock = Clock::active();
        clock.give(Input::Transfer(seconds(20)));
        let outputs = inputs.into_iter().map(|input| clock.give(input)).last();
        assert_eq!(outputs, Some(failed(outcome)));
        assert!(clock.call.active());
        assert_eq!(clock.give(told(200, true)), [], "too late");
        // It can be tried again.
        assert_eq!(clock.give(Input::Transfer(seconds(20))).len(), 2);
        assert_eq!(clock.wait(), (seconds(20), failed(Outcome::Timeout)));
    }
}

#[test]
fn a_call_that_ends_while_it_is_moved_counts_as_moved() {
    let mut clock = Clock::active();
    clock.give(Input::Transfer(seconds(20)));
    clock.give(answered(1, Some(202)));
    assert_eq!(
        clock.give(Input::Ended),
        [
            Output::Transferred(Outcome::Done),
            hangup(HangupCause::Transferred),
            Output::Over
        ]
    );
    let mut clock = Clock::active();
    clock.give(Input::Transfer(seconds(20)));
    assert_eq!(
        clock.give(Input::Left),
        [
            Output::Transferred(Outcome::Left),
            Output::Bye,
            hangup(HangupCause::Local),
            Output::Over
        ]
    );
}

#[test]
fn a_call_that_is_not_answered_cannot_be_moved() {
    let mut clock = Clock::outbound();
    assert_eq!(
        clock.give(Input::Transfer(seconds(20))),
        [Output::Transferred(Outcome::NotActive)]
    );
}

fn asked() -> Clock {
    let now = Instant::now();
    let mut clock = Clock {
        call: Call::inbound(LIMITS, now),
        now,
    };
    // Answered at once: nobody hears a question before.
    assert_eq!(clock.give(Input::Ask), [Output::Answer]);
    clock
}

#[test]
fn a_caller_who_is_asked_enters_the_room_when_admitted() {
    let mut clock = asked();
    assert_eq!(clock.give(Input::Heard), []);
    clock.now += seconds(5);
    assert_eq!(clock.give(Input::Admitted), []);
    assert_eq!(clock.give(Input::Joined), [status(CallStatus::Active)]);
    assert!(clock.call.active());
    // The call lasts from its answer on.
    let (passed, outputs) = clock.wait();
    assert_eq!(passed, LIMITS.duration - seconds(5));
    assert!(outputs.contains(&hangup(HangupCause::TooLong)));
}

#[test]
fn a_caller_who_is_asked_and_not_admitted_is_hung_up() {
    let (passed, outputs) = asked().wait();
    assert_eq!(passed, ASK_WITHIN);
    let over = |cause| [Output::Bye, hangup(cause), Output::Over];
    assert_eq!(outputs, over(HangupCause::Unauthorized));
    let mut clock = asked();
    clock.give(Input::Admitted);
    let (passed, outputs) = clock.wait();
    assert_eq!(
        (passed, outputs),
        (JOIN_WITHIN, over(HangupCause::Failed).to_vec())
    );
    let mut clock = asked();
    assert_eq!(
        clock.give(Input::Ended),
        [hangup(HangupCause::Remote), Output::Over]
    );
    let mut clock = asked();
    clock.give(Input::Admitted);
    assert_eq!(clock.give(Input::Left), over(HangupCause::Failed));
}

fn with_another() -> Clock {
    let now = Instant::now();
    Clock {
        call: Call::outbound(LIMITS, true, now),
        now,
    }
}

#[test]
fn a_gateway_that_fails_or_says_nothing_gives_way_to_the_next() {
    let mut clock = with_another();
    clock.give(Input::Progress(100));
    assert_eq!(clock.give(Input::Failed(refused(503))), [Output::Redial]);
    // What the former one still says is about nothing.
    assert_eq!(clock.give(Input::Failed(Failure::Unreachable)), []);
    assert_eq!(clock.give(Input::Redialled(true)), []);
    let (passed, outputs) = clock.wait();
    assert_eq!(passed, IMPATIENCE);
    assert_eq!(outputs, [Output::Cancel, Output::Redial]);
    assert_eq!(clock.give(Input::Redialled(false)), []);
    let (passed, outputs) = clock.wait();
    assert_eq!(passed, SILENCE);
    assert_eq!(
        outputs,
        [
            Output::Cancel,
            hangup(HangupCause::Unreachable),
            Output::Over
        ]
    );
}

#[test]
fn only_what_another_gateway_can_do_better_is_tried_there() {
    for code in [486, 404, 500, 603] {
        let outputs = with_another().give(Input::Failed(refused(code)));
        assert!(!outputs.contains(&Output::Redial), "{code}: {outputs:?}");
    }
    // It has rung there.
    let mut clock = with_another();
    clock.give(Input::Progress(180));
    let outputs = clock.give(Input::Failed(refused(503)));
    assert_eq!(outputs, [hangup(HangupCause::Failed), Output::Over]);
    // There is none after all; and the limit is that of the whole call.
    let mut clock = with_another();
    assert_eq!(clock.give(Input::Failed(refused(503))), [Output::Redial]);
    assert_eq!(
        clock.give(Input::NotRedialled),
        [hangup(HangupCause::Failed), Output::Over]
    );
    let mut clock = with_another();
    clock.give(Input::Failed(Failure::Unreachable));
    let (passed, outputs) = clock.wait();
    assert_eq!(passed, LIMITS.ringing);
    assert!(outputs.contains(&hangup(HangupCause::Unreachable)));
    let mut clock = with_another();
    clock.give(Input::Failed(Failure::Unreachable));
    let outputs = clock.give(Input::HangUp(HangupCause::Local));
    assert!(outputs.contains(&hangup(HangupCause::Cancelled)));
}
