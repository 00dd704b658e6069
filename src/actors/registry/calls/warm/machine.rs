//! The states of a warm transfer: who is on hold, who is hung up, and what is told, by what happens to the caller, the person
//! and the agents. Time is an argument; calls, rooms and messages are left to the task that drives it.

use std::time::{Duration, Instant};

use vivavoce_seams::rooms::telephone::HangupCause;

/// What bounds a transfer.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How long an agent that is gone is waited for.
    pub agent_patience: Duration,
    /// What becomes of the transfer then.
    pub without_agent: WithoutAgent,
    /// How long a consultation may last.
    pub consult: Duration,
    /// Whether the caller waits in a queue: the two are connected when the person answers, and a caller who is not connected
    /// stays on hold, for the next one.
    pub of_queue: bool,
}

/// What becomes of a transfer whose agent does not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutAgent {
    /// It is cancelled.
    Back,
    /// The two are connected.
    Complete,
}

/// What becomes of the agent when a transfer is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// It leaves.
    Leave,
    /// It stays, and all three hear each other.
    Stay,
}

/// How a transfer is, for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The person's telephone rings.
    Ringing,
    /// The person is consulted.
    Consulting,
    /// They are connected.
    Complete,
    /// The caller is back, because somebody wanted it so or the time was over.
    Cancelled(Cancelled),
    /// The caller is back, or has gone.
    Failed(Failed),
}

/// Why a transfer was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// Somebody asked for it.
    Asked,
    /// The agent has not come back.
    AgentLeft,
    /// The consultation has lasted too long.
    Timeout,
}

/// Why a transfer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The person was not reached.
    Unreached(HangupCause),
    /// The person has hung up.
    PersonLeft,
    /// The caller has hung up.
    CallerLeft,
}

impl State {
    /// As events, attributes and the API say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ringing => "ringing",
            Self::Consulting => "consulting",
            Self::Complete => "complete",
            Self::Cancelled(_) => "cancelled",
            Self::Failed(_) => "failed",
        }
    }

    /// Why it is over, where it was not completed.
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Ringing | Self::Consulting | Self::Complete => None,
            Self::Cancelled(Cancelled::Asked) => Some("cancelled"),
            Self::Cancelled(Cancelled::AgentLeft) => Some("agent_left"),
            Self::Cancelled(Cancelled::Timeout) => Some("timeout"),
            Self::Failed(Failed::Unreached(cause)) => Some(cause.as_str()),
            Self::Failed(Failed::PersonLeft) => Some("person_left"),
            Self::Failed(Failed::CallerLeft) => Some("caller_left"),
        }
    }
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The person has answered.
    Answered,
    /// The person's call is over.
    PersonGone(HangupCause),
    /// The caller's call is over.
    CallerGone,
    /// Whether anybody but the two is in the room.
    Agents(bool),
    /// It is to be completed.
    Complete(Agent),
    /// It is to be cancelled.
    Cancel,
    /// A deadline has passed.
    Tick,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Puts the caller on hold.
    Hold,
    /// Takes the caller off hold.
    Release,
    /// Hangs up the person.
    HangUpPerson,
    /// Tells the person that the caller has gone, and hangs up.
    DismissPerson,
    /// Hangs up the caller.
    HangUpCaller,
    /// Removes the agent.
    RemoveAgent,
    /// Tells everybody how it is.
    Tell(State),
}

/// Why something cannot be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody has answered yet.
    #[error("the person has not answered yet")]
    Ringing,
    /// It is too late.
    #[error("the transfer is over")]
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Ringing,
    /// Since when.
    Consulting(Instant),
    /// The two are connected.
    Connected,
    /// One of the two has gone while somebody else was there, and this is done when they have gone too.
    Left(Output),
    Over,
}

/// A warm transfer.
#[derive(Debug)]
pub struct Machine {
    rules: Rules,
    phase: Phase,
    /// Since when nobody but the two is in the room.
    deserted: Option<Instant>,
}

impl Machine {
    /// A transfer that begins, and what is done first.
    pub fn begin(rules: Rules) -> (Self, Vec<Output>) {
        let machine = Self {
            rules,
            phase: Phase::Ringing,
            deserted: None,
        };
        (machine, vec![Output::Hold, Output::Tell(State::Ringing)])
    }

    /// Whether nothing more can happen.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether it matters now who else is in the room. Where it does not, it does when somebody hangs up.
    pub const fn watches(&self) -> bool {
        !matches!(self.phase, Phase::Connected | Phase::Over)
    }

    /// Whether it can be completed now.
    pub const fn may_complete(&self) -> bool {
        matches!(self.phase, Phase::Consulting(_))
    }

    /// When [`Input::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let lasts = match self.phase {
            Phase::Ringing | Phase::Left(_) => None,
            Phase::Consulting(since) => Some(since + self.rules.consult),
            Phase::Connected | Phase::Over => return None,
        };
        lasts.into_iter().chain(self.lonely_until()).min()
    }

    /// When it is decided what becomes of a transfer without an agent. One that is to be completed then waits for the
    /// person's answer.
    fn lonely_until(&self) -> Option<Instant> {
        let completes = self.rules.of_queue || self.rules.without_agent == WithoutAgent::Complete;
        let waits = self.phase == Phase::Ringing && completes;
        let until = self.deserted.map(|since| since + self.rules.agent_patience);
        until.filter(|_| !waits)
    }

    /// Takes what has happened. What is asked for and cannot be done is refused.
    pub fn handle(&mut self, input: Input, now: Instant) -> Result<Vec<Output>, Refusal> {
        let outputs = match self.phase {
            Phase::Over => match input {
                Input::Complete(_) | Input::Cancel => return Err(Refusal::Over),
                _ => Vec::new(),
            },
            Phase::Connected => match input {
                Input::Complete(_) | Input::Cancel => return Err(Refusal::Over),
                Input::CallerGone => self.one_of_two_left(Output::HangUpPerson),
                Input::PersonGone(_) => self.one_of_two_left(Output::HangUpCaller),
                Input::Agents(there) => {
                    self.see_agents(there, now);
                    Vec::new()
                }
                Input::Answered | Input::Tick => Vec::new(),
            },
            Phase::Left(last) => match input {
                Input::Complete(_) | Input::Cancel => return Err(Refusal::Over),
                Input::CallerGone if last == Output::HangUpCaller => self.end(),
                Input::PersonGone(_) if last == Output::HangUpPerson => self.end(),
                Input::Agents(there) => {
                    self.see_agents(there, now);
                    self.tick(now)
                }
                Input::Tick => self.tick(now),
                Input::Answered | Input::CallerGone | Input::PersonGone(_) => Vec::new(),
            },
            Phase::Ringing | Phase::Consulting(_) => return self.pending(input, now),
        };
        Ok(outputs)
    }

    fn pending(&mut self, input: Input, now: Instant) -> Result<Vec<Output>, Refusal> {
        let rings = self.phase == Phase::Ringing;
        Ok(match input {
            Input::Answered if rings && self.rules.of_queue => self.connect(Agent::Leave),
            Input::Answered if rings => {
                self.phase = Phase::Consulting(now);
                let mut outputs = vec![Output::Tell(State::Consulting)];
                outputs.extend(self.tick(now));
                outputs
            }
            Input::Complete(_) if rings => return Err(Refusal::Ringing),
            Input::Complete(agent) => self.connect(agent),
            Input::Cancel => self.back(Cancelled::Asked),
            Input::PersonGone(cause) => {
                let failed = if rings {
                    Failed::Unreached(cause)
                } else {
                    Failed::PersonLeft
                };
                self.phase = Phase::Over;
                let mut outputs = self.release();
                outputs.push(Output::Tell(State::Failed(failed)));
                outputs
            }
            Input::CallerGone => {
                self.phase = Phase::Over;
                let person = if rings {
                    Output::HangUpPerson
                } else {
                    Output::DismissPerson
                };
                vec![Output::Tell(State::Failed(Failed::CallerLeft)), person]
            }
            Input::Agents(there) => {
                self.see_agents(there, now);
                self.tick(now)
            }
            Input::Tick => self.tick(now),
            Input::Answered => Vec::new(),
        })
    }

    fn tick(&mut self, now: Instant) -> Vec<Output> {
        if self.lonely_until().is_some_and(|until| now >= until) {
            if let Phase::Left(last) = self.phase {
                self.phase = Phase::Over;
                return vec![last];
            }
            return match self.rules.without_agent {
                WithoutAgent::Back => self.back(Cancelled::AgentLeft),
                WithoutAgent::Complete => self.connect(Agent::Stay),
            };
        }
        match self.phase {
            Phase::Consulting(since) if now >= since + self.rules.consult => {
                self.back(Cancelled::Timeout)
            }
            _ => Vec::new(),
        }
    }

    fn connect(&mut self, agent: Agent) -> Vec<Output> {
        self.phase = Phase::Connected;
        let mut outputs = vec![Output::Release, Output::Tell(State::Complete)];
        if agent == Agent::Leave {
            outputs.push(Output::RemoveAgent);
        }
        outputs
    }

    fn back(&mut self, why: Cancelled) -> Vec<Output> {
        self.phase = Phase::Over;
        let mut outputs = vec![Output::Tell(State::Cancelled(why)), Output::HangUpPerson];
        outputs.extend(self.release());
        outputs
    }

    /// The caller is off hold, unless somebody else is asked for it next.
    fn release(&self) -> Vec<Output> {
        if self.rules.of_queue {
            return Vec::new();
        }
        vec![Output::Release]
    }

    /// Of the two who are connected one has gone: the other does not stay in an empty room.
    fn one_of_two_left(&mut self, other: Output) -> Vec<Output> {
        if self.deserted.is_some() {
            self.phase = Phase::Over;
            vec![other]
        } else {
            self.phase = Phase::Left(other);
            Vec::new()
        }
    }

    const fn end(&mut self) -> Vec<Output> {
        self.phase = Phase::Over;
        Vec::new()
    }

    fn see_agents(&mut self, there: bool, now: Instant) {
        if there {
            self.deserted = None;
        } else {
            self.deserted.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);
    const CONSULT: Duration = Duration::from_mins(10);

    /// A transfer and its clock.
    struct Case {
        machine: Machine,
        now: Instant,
    }

    impl Case {
        fn ringing(without_agent: WithoutAgent) -> Self {
            Self::of(without_agent, false)
        }

        fn of(without_agent: WithoutAgent, of_queue: bool) -> Self {
            let (machine, first) = Machine::begin(Rules {
                agent_patience: PATIENCE,
                without_agent,
                consult: CONSULT,
                of_queue,
            });
            assert_eq!(first, [Output::Hold, Output::Tell(State::Ringing)]);
            let now = Instant::now();
            Self { machine, now }
        }

        fn consulting(without_agent: WithoutAgent) -> Self {
            let mut case = Self::ringing(without_agent);
            let told = case.takes(Input::Answered);
            assert_eq!(told, [Output::Tell(State::Consulting)]);
            case
        }

        fn takes(&mut self, input: Input) -> Vec<Output> {
            self.machine.handle(input, self.now).unwrap()
        }

        /// Time passes until the next deadline, which is so far away.
        fn waits(&mut self, time: Duration) -> Vec<Output> {
            assert_eq!(self.machine.deadline(), Some(self.now + time));
            self.now += time;
            self.takes(Input::Tick)
        }
    }

    fn cancelled(why: Cancelled) -> [Output; 3] {
        let told = Output::Tell(State::Cancelled(why));
        [told, Output::HangUpPerson, Output::Release]
    }

    #[test]
    fn a_person_who_was_consulted_is_connected_with_the_caller() {
        for (agent, last) in [
            (Agent::Leave, Some(Output::RemoveAgent)),
            (Agent::Stay, None),
        ] {
            let mut case = Case::consulting(WithoutAgent::Back);
            let connected = [Output::Release, Output::Tell(State::Complete)];
            let expected: Vec<Output> = connected.into_iter().chain(last).collect();
            assert_eq!(case.takes(Input::Complete(agent)), expected);
            let again = case.machine.handle(Input::Complete(agent), case.now);
            assert_eq!(again, Err(Refusal::Over));
            assert_eq!(case.machine.deadline(), None);
        }
    }

    #[test]
    fn whoever_is_left_alone_by_the_other_is_hung_up_and_with_an_agent_when_that_has_gone() {
        let remote = HangupCause::Remote;
        let (caller, person) = (Input::CallerGone, Input::PersonGone(remote));
        for (gone, other, other_gone) in [
            (caller, Output::HangUpPerson, person),
            (person, Output::HangUpCaller, caller),
        ] {
            let mut case = Case::consulting(WithoutAgent::Back);
            case.takes(Input::Complete(Agent::Leave));
            case.takes(Input::Agents(false));
            assert_eq!(case.takes(gone), [other]);
            assert!(case.machine.is_over());

            let mut case = Case::consulting(WithoutAgent::Back);
            case.takes(Input::Complete(Agent::Stay));
            case.takes(Input::Agents(true));
            assert!(case.takes(gone).is_empty());
            // What is told again changes nothing.
            assert!(case.takes(gone).is_empty());
            assert!(case.takes(Input::Agents(false)).is_empty());
            assert_eq!(case.waits(PATIENCE), [other]);

            let mut case = Case::consulting(WithoutAgent::Back);
            case.takes(Input::Complete(Agent::Stay));
            case.takes(Input::Agents(true));
            case.takes(gone);
            assert!(case.takes(other_gone).is_empty());
            assert!(case.machine.is_over());
        }
    }

    #[test]
    fn nothing_is_completed_before_the_person_has_answered() {
        let mut case = Case::ringing(WithoutAgent::Back);
        let early = case.machine.handle(Input::Complete(Agent::Leave), case.now);
        assert_eq!(early, Err(Refusal::Ringing));
        assert_eq!(case.takes(Input::Cancel), cancelled(Cancelled::Asked));
        assert!(case.machine.is_over());
    }

    #[test]
    fn a_person_who_is_not_reached_or_hangs_up_gives_the_caller_back() {
        let busy = Input::PersonGone(HangupCause::Busy);
        let mut case = Case::ringing(WithoutAgent::Back);
        let failed = |why| vec![Output::Release, Output::Tell(State::Failed(why))];
        assert_eq!(
            case.takes(busy),
            failed(Failed::Unreached(HangupCause::Busy))
        );
        let mut case = Case::consulting(WithoutAgent::Back);
        let gone = Input::PersonGone(HangupCause::Remote);
        assert_eq!(case.takes(gone), failed(Failed::PersonLeft));
    }

    #[test]
    fn a_caller_who_hangs_up_leaves_nobody_waiting() {
        let told = Output::Tell(State::Failed(Failed::CallerLeft));
        let mut case = Case::ringing(WithoutAgent::Back);
        assert_eq!(case.takes(Input::CallerGone), [told, Output::HangUpPerson]);
        let mut case = Case::consulting(WithoutAgent::Back);
        assert_eq!(case.takes(Input::CallerGone), [told, Output::DismissPerson]);
        assert!(case.takes(Input::PersonGone(HangupCause::Local)).is_empty());
    }

    #[test]
    fn an_agent_that_dies_is_waited_for_and_then_the_caller_is_back() {
        for mut case in [
            Case::ringing(WithoutAgent::Back),
            Case::consulting(WithoutAgent::Back),
        ] {
            assert!(case.takes(Input::Agents(false)).is_empty());
            // That it is still away begins no time anew.
            case.now += PATIENCE / 2;
            assert!(case.takes(Input::Agents(false)).is_empty());
            let back = case.waits(PATIENCE / 2);
            assert_eq!(back, cancelled(Cancelled::AgentLeft));
        }
    }

    #[test]
    fn an_agent_that_comes_back_goes_on() {
        let mut case = Case::consulting(WithoutAgent::Back);
        case.takes(Input::Agents(false));
        case.now += PATIENCE / 2;
        case.takes(Input::Agents(true));
        case.now += PATIENCE;
        assert!(case.takes(Input::Tick).is_empty());
        let done = case.takes(Input::Complete(Agent::Stay));
        assert_eq!(done, [Output::Release, Output::Tell(State::Complete)]);
    }

    #[test]
    fn a_caller_of_a_queue_is_connected_by_the_answer_and_stays_on_hold_without_one() {
        let mut case = Case::of(WithoutAgent::Back, true);
        case.takes(Input::Agents(false));
        assert_eq!(case.machine.deadline(), None);
        case.now += PATIENCE;
        let connected = [
            Output::Release,
            Output::Tell(State::Complete),
            Output::RemoveAgent,
        ];
        assert_eq!(case.takes(Input::Answered), connected);
        assert_eq!(
            case.takes(Input::CallerGone),
            [Output::HangUpPerson],
            "nobody else is there"
        );
        let busy = Failed::Unreached(HangupCause::Busy);
        let mut case = Case::of(WithoutAgent::Back, true);
        let failed = case.takes(Input::PersonGone(HangupCause::Busy));
        assert_eq!(failed, [Output::Tell(State::Failed(busy))]);
        let mut case = Case::of(WithoutAgent::Back, true);
        let told = Output::Tell(State::Cancelled(Cancelled::Asked));
        assert_eq!(case.takes(Input::Cancel), [told, Output::HangUpPerson]);
    }

    #[test]
    fn without_an_agent_the_two_are_connected_where_that_is_set() {
        let connected = [Output::Release, Output::Tell(State::Complete)];
        let mut case = Case::consulting(WithoutAgent::Complete);
        case.takes(Input::Agents(false));
        assert_eq!(case.waits(PATIENCE), connected);
        // One that rings is waited for.
        let mut case = Case::ringing(WithoutAgent::Complete);
        case.takes(Input::Agents(false));
        assert_eq!(case.machine.deadline(), None);
        case.now += PATIENCE;
        let done = case.takes(Input::Answered);
        let expected = [
            Output::Tell(State::Consulting),
            Output::Release,
            Output::Tell(State::Complete),
        ];
        assert_eq!(done, expected);
    }

    #[test]
    fn a_consultation_ends() {
        let mut case = Case::consulting(WithoutAgent::Complete);
        case.takes(Input::Agents(true));
        assert_eq!(case.waits(CONSULT), cancelled(Cancelled::Timeout));
    }
}
