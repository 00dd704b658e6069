//! The queue in virtual time, beside a listener who keeps a clock of his own and a plain list of what was promised.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A chunk that knows where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk {
    number: usize,
    duration: Duration,
}

impl Sound for Chunk {
    fn duration(&self) -> Duration {
        self.duration
    }
}

/// What is known of one utterance from outside.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "a list of facts, no states")]
struct Known {
    protected: bool,
    /// Synthesis was asked for it and may bring audio.
    running: bool,
    text: String,
    text_ended: bool,
    failed: bool,
    /// It was cleared: nothing of it may leave.
    cut: Option<Instant>,
    started: bool,
    /// Chunks that were brought, and those that left, with the time when the listener begins to hear them.
    brought: usize,
    left: Vec<(Instant, Chunk)>,
    /// By the listener's clock.
    until: Option<Instant>,
    /// When synthesis ended.
    synthesised: Option<Instant>,
    end: Option<(Instant, EventKind)>,
    id: Option<String>,
    /// Its last text has been written.
    written: bool,
}

impl Known {
    const fn is_protected(&self) -> bool {
        self.protected && !self.failed
    }

    fn duration(&self) -> Duration {
        self.left.iter().map(|(_, chunk)| chunk.duration).sum()
    }

    /// How much of it the listener hears until `now`.
    fn played(&self, now: Instant) -> Duration {
        let played = |(begins, chunk): &(Instant, Chunk)| {
            now.saturating_duration_since(*begins).min(chunk.duration)
        };
        self.left.iter().map(played).sum()
    }
}

/// A queue, its listener and its synthesiser.
struct Stage {
    queue: PlaybackQueue<Chunk>,
    lead: Duration,
    start: Instant,
    now: Instant,
    /// When the listener, who plays what he gets as he gets it, will have nothing to play any more.
    runs_dry: Instant,
    known: BTreeMap<UtteranceKey, Known>,
    /// In the order in which they happened.
    events: Vec<Event>,
    held: bool,
    /// Whether filler leaves whenever it may.
    filling: bool,
    /// Filler that has left: when the listener begins to hear it, and how long it is.
    filler: Vec<(Instant, Duration)>,
    /// Ids that were cut, and whether text has come for them that was not the last.
    cut_ids: BTreeMap<String, bool>,
}

impl Stage {
    fn new(lead: Duration) -> Self {
        let now = Instant::now();
        Self {
            queue: PlaybackQueue::new(lead),
            lead,
            start: now,
            now,
            runs_dry: now,
            known: BTreeMap::new(),
            events: Vec::new(),
            held: false,
            filling: false,
            filler: Vec::new(),
            cut_ids: BTreeMap::new(),
        }
    }

    fn say(&mut self, text: &str) -> UtteranceKey {
        self.speak(speak(text)).unwrap().unwrap()
    }

    fn say_protected(&mut self, text: &str) -> UtteranceKey {
        let allow_interruption = false;
        let speak = Speak {
            allow_interruption,
            ..speak(text)
        };
        self.speak(speak).unwrap().unwrap()
    }

    /// `None` where it is dropped.
    fn speak(&mut self, speak: Speak) -> Result<Option<UtteranceKey>, Overloaded> {
        let wanted = speak.clone();
        let before: Vec<_> = self.to_be_cut(|k| !k.is_protected());
        let spoken = self.queue.speak(speak, self.now)?;
        let is_late = self.is_late(&wanted);
        let Some((key, called_back)) = spoken else {
            assert!(is_late, "{wanted:?}");
            return Ok(None);
        };
        assert!(!is_late, "{wanted:?}");
        if wanted.replace {
            assert_eq!(called_back, self.first_begun(&before));
            self.mark_cut(&before);
        }
        if let Some(id) = &wanted.id {
            self.cut_ids.remove(id);
        }
        self.written_to(key, wanted);
        self.drain();
        Ok(Some(key))
    }

    /// The last utterance, while text may be added.
    fn open(&self) -> Option<(UtteranceKey, &Known)> {
        let (&key, last) = self.known.last_key_value()?;
        let open = !last.written && last.cut.is_none() && !last.failed && last.end.is_none();
        open.then_some((key, last))
    }

    /// The model of what was on its way when its utterance was cut.
    fn is_late(&mut self, speak: &Speak) -> bool {
        let is_its = |(_, open): (_, &Known)| open.id.is_some() && open.id == speak.id;
        let is_open = self.open().is_some_and(is_its);
        let cut = speak.id.as_ref().and_then(|id| self.cut_ids.get_mut(id));
        let Some(goes_on) = cut.filter(|_| !is_open && !speak.replace) else {
            return false;
        };
        let went_on = std::mem::replace(goes_on, !speak.flush);
        !speak.flush || went_on || speak.text.trim().is_empty()
    }

    /// The model of what belongs together.
    fn written_to(&mut self, key: UtteranceKey, speak: Speak) {
        let continued = self.open().filter(|(_, open)| {
            let same = open.id.is_none() || speak.id.is_none() || open.id == speak.id;
            !speak.replace && same
        });
        let continued = continued.map(|(key, _)| key);
        match (continued, self.known.last_key_value()) {
            (Some(open), _) => assert_eq!(key, open, "parts of one utterance"),
            (None, Some((last, _))) => assert!(key > *last, "an utterance of its own"),
            (None, None) => {}
        }
        self.known
            .values_mut()
            .for_each(|known| known.written = true);
        let known = self.known.entry(key).or_default();
        known.protected |= !speak.allow_interruption;
        known.id = known.id.take().or(speak.id);
        known.written = speak.flush;
    }

    fn clear(&mut self) {
        let cut = self.to_be_cut(|k| !k.is_protected());
        let called_back = self.queue.clear(self.now);
        assert_eq!(called_back, self.first_begun(&cut));
        self.mark_cut(&cut);
        self.drain();
    }

    fn clear_id(&mut self, id: &str) {
        let cut = self.to_be_cut(|k| !k.is_protected() && k.id.as_deref() == Some(id));
        let called_back = self.queue.clear_id(id, self.now);
        assert_eq!(called_back, self.first_begun(&cut));
        self.mark_cut(&cut);
        self.drain();
    }

    /// The first of those of which something is on its way.
    fn first_begun(&self, cut: &[UtteranceKey]) -> Option<UtteranceKey> {
        cut.iter().find(|key| self.known[key].started).copied()
    }

    fn fill(&mut self, filling: bool) {
        self.filling = filling;
        self.drain();
    }

    fn hold(&mut self, held: bool) {
        self.held = held;
        self.queue.hold(held);
        self.drain();
    }

    /// The model of `clear`: everything that has not ended, is to be cut, and has no audio of another behind it in the
    /// listener's ears.
    fn to_be_cut(&self, cuts: impl Fn(&Known) -> bool) -> Vec<UtteranceKey> {
        let spared = self
            .known
            .iter()
            .rev()
            .find(|(_, k)| {
                !cuts(k) && k.end.is_none() && k.until.is_some_and(|until| until > self.now)
            })
            .map(|(&key, _)| key);
        let live = |k: &Known| k.end.is_none() && k.cut.is_none() && cuts(k);
        // The end of one that was heard whole, or has no audio, has only to be told.
        let only_told = |k: &Known| {
            k.synthesised.is_some()
                && k.left.len() == k.brought
                && k.played(self.now) == k.duration()
        };
        self.known
            .iter()
            .filter(|&(&key, k)| live(k) && !only_told(k) && spared.is_none_or(|s| key > s))
            .map(|(&key, _)| key)
            .collect()
    }

    fn mark_cut(&mut self, keys: &[UtteranceKey]) {
        for key in keys {
            let known = self.known.get_mut(key).unwrap();
            known.cut = Some(self.now);
            known.running = false;
            let id = known.id.clone();
            self.cut_ids.extend(id.map(|id| (id, false)));
            // The listener drops what he has of it.
            known.until = known.until.map(|until| until.min(self.now));
        }
        // And the filler behind it.
        let sounds = |(_, chunk): &&(Instant, Chunk)| !chunk.duration.is_zero();
        let begun = keys
            .iter()
            .filter_map(|key| self.known[key].left.iter().find(sounds));
        if let Some(from) = begun.map(|(begins, _)| *begins).min() {
            self.filler.retain(|(begins, _)| *begins < from);
        }
        let last = self.known.values().filter_map(|k| k.until).max();
        let filler = self.filler.iter().map(|(begins, time)| *begins + *time);
        self.runs_dry = last.into_iter().chain(filler).max().unwrap_or(self.start);
    }

    fn synthesise(&mut self, key: UtteranceKey, duration: Duration) -> bool {
        let known = self.known.get_mut(&key).unwrap();
        let number = known.brought;
        let taken = self.queue.sound(key, Chunk { number, duration }).is_ok();
        if taken && known.running {
            known.brought += 1;
        }
        self.drain();
        taken
    }

    fn done(&mut self, key: UtteranceKey) {
        let known = self.known.get_mut(&key).unwrap();
        if std::mem::take(&mut known.running) {
            known.failed = !known.text_ended;
            let id = known.id.clone().filter(|_| known.failed);
            self.cut_ids.extend(id.map(|id| (id, false)));
            known.synthesised = Some(self.now);
            let brought = self.queue.utterances.iter().find(|u| u.key == key);
            let brought = brought.map_or(Duration::ZERO, |u| u.synthesised);
            self.queue.end_text(key, brought);
        }
        self.queue.done(key);
        self.drain();
    }

    fn fail(&mut self, key: UtteranceKey) {
        let known = self.known.get_mut(&key).unwrap();
        if std::mem::take(&mut known.running) {
            known.failed = true;
            let id = known.id.clone();
            self.cut_ids.extend(id.map(|id| (id, false)));
            known.synthesised = Some(self.now);
        }
        self.queue.failed(key, problem());
        self.drain();
    }

    /// Brings so much audio for `key` as it is wanted, and its end.
    fn synthesise_all(&mut self, key: UtteranceKey, duration: Duration) {
        let mut rest = duration;
        while !rest.is_zero() {
            assert!(self.synthesise(key, rest.min(CHUNK)));
            rest = rest.saturating_sub(CHUNK);
        }
        self.done(key);
    }

    fn running(&self) -> Option<UtteranceKey> {
        let mut running = self.known.iter().filter(|(_, k)| k.running);
        running.next().map(|(&key, _)| key)
    }

    /// Lets time pass, waking when the queue wants to be woken.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(wake) = self.next_wakeup().filter(|&wake| wake <= until) {
            assert!(wake > self.now, "woken for nothing");
            self.now = wake;
            self.drain();
        }
        self.now = until;
        self.drain();
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let filler = self.filler_wait().map(|wait| self.now + wait);
        self.queue
            .next_wakeup(self.now)
            .into_iter()
            .chain(filler)
            .min()
    }

    fn filler_wait(&self) -> Option<Duration> {
        let wait = self.queue.filler_wait(self.now, CHUNK)?;
        self.filling.then_some(wait)
    }

    /// Takes everything that is to be done now and holds it against the promises.
    fn drain(&mut self) {
        loop {
            while let Some(output) = self.queue.poll(self.now) {
                match output {
                    Output::Sound { utterance, sound } => self.heard(utterance, sound),
                    Output::Event(event) => self.told(event),
                    Output::Command(command) => self.asked(command),
                }
            }
            if self.filler_wait() != Some(Duration::ZERO) {
                break;
            }
            self.heard_filler();
        }
        let longest = MAX_SOUND + Duration::from_millis(60);
        assert!(self.queue.waiting < longest);
        let sounds = |u: &Utterance<Chunk>| u.sound.iter().map(Sound::duration).sum::<Duration>();
        let waiting = self.queue.utterances.iter().map(sounds).sum::<Duration>();
        assert_eq!(waiting, self.queue.waiting);
        let playing = self.runs_dry > self.now;
        assert_eq!(self.queue.is_playing(self.now), playing);
    }

    fn heard_filler(&mut self) {
        assert!(!self.held, "nothing leaves while it is held");
        self.queue.fill(self.now, CHUNK);
        let begins = self.runs_dry.max(self.now);
        self.filler.push((begins, CHUNK));
        self.runs_dry = begins + CHUNK;
        let ahead = self.runs_dry - self.now;
        assert!(ahead <= self.lead.min(LEAD).max(CHUNK), "{ahead:?} ahead");
    }

    fn heard(&mut self, key: UtteranceKey, chunk: Chunk) {
        assert!(!self.held, "nothing leaves while it is held");
        let later = self.known.range(key..).skip(1);
        assert!(later.into_iter().all(|(_, k)| k.left.is_empty()), "order");
        let mut earlier = self.known.range(..key).filter(|(_, k)| k.end.is_none());
        let told = earlier.all(|(_, k)| k.cut.is_none() && !k.failed);
        assert!(told, "clients drop what they have when a cut is told");
        let known = self.known.get_mut(&key).unwrap();
        assert!(known.started && known.cut.is_none() && known.end.is_none());
        assert_eq!(chunk.number, known.left.len(), "every chunk, in order");
        let begins = self.runs_dry.max(self.now);
        known.left.push((begins, chunk));
        self.runs_dry = begins + chunk.duration;
        assert!(self.runs_dry - self.now <= self.lead.max(chunk.duration));
        if !chunk.duration.is_zero() {
            known.until = Some(self.runs_dry);
        }
    }

    fn told(&mut self, event: Event) {
        self.events.push(event.clone());
        let earlier_ended = self
            .known
            .range(..event.utterance)
            .all(|(_, k)| k.end.is_some());
        let known = self.known.entry(event.utterance).or_default();
        assert!(known.end.is_none(), "nothing after the end: {event:?}");
        assert_eq!(event.id, known.id, "under its own name");
        let played = known.played(known.cut.unwrap_or(self.now));
        match &event.kind {
            EventKind::Started => {
                assert!(known.cut.is_none() && !std::mem::replace(&mut known.started, true));
                return;
            }
            // Not asked for here.
            EventKind::Progress { .. } => unreachable!("{event:?}"),
            EventKind::Complete { duration } => {
                assert!(known.cut.is_none() && !known.failed);
                assert_eq!((*duration, known.left.len()), (played, known.brought));
            }
            EventKind::Failed { played: told, .. } => {
                assert!(known.failed && known.cut.is_none());
                assert_eq!((*told, known.left.len()), (played, known.brought));
            }
            EventKind::Interrupted { played: told, .. } => {
                assert!(known.cut.is_some(), "only what was cleared is interrupted");
                assert_eq!(*told, played);
            }
        }
        assert!(
            known.until.is_none_or(|until| until <= self.now),
            "not before it was heard"
        );
        let blank = matches!(event.kind, EventKind::Complete { .. }) && known.text.is_empty();
        assert!(earlier_ended || blank, "ends are told in order");
        if let (EventKind::Complete { .. }, Some(id), false) = (&event.kind, &event.id, blank) {
            self.cut_ids.remove(id);
        }
        known.end = Some((self.now, event.kind));
    }

    fn asked(&mut self, command: Command) {
        let (key, text, last) = match command {
            Command::Synthesize {
                utterance,
                text,
                last,
                ..
            } => {
                assert_eq!(self.running(), None, "one at a time");
                let known = self.known.entry(utterance).or_default();
                assert!(known.cut.is_none() && known.end.is_none() && known.text.is_empty());
                known.running = true;
                let ahead = self.known.range(..utterance);
                let ahead = ahead.filter(|(_, k)| k.cut.is_none() && k.left.len() < k.brought);
                assert!(ahead.count() <= 1, "one ahead");
                (utterance, text, last)
            }
            Command::MoreText {
                utterance,
                text,
                last,
            } => (utterance, text, last),
            Command::Cancel { utterance } => {
                assert!(self.known[&utterance].cut.is_some());
                return;
            }
        };
        let known = self.known.get_mut(&key).unwrap();
        assert!(known.running && !known.text_ended);
        let begin = known.text.len();
        let brought = self.queue.utterances.iter().find(|u| u.key == key);
        let brought = brought.map_or(Duration::ZERO, |u| u.synthesised);
        self.queue
            .begin_text(key, begin..begin + text.len(), brought);
        known.text.push_str(&text);
        known.text_ended = last;
    }

    fn ended(&self) -> usize {
        self.known.values().filter(|k| k.end.is_some()).count()
    }

    fn kinds(&self, key: UtteranceKey) -> Vec<&EventKind> {
        let its = self.events.iter().filter(|event| event.utterance == key);
        its.map(|event| &event.kind).collect()
    }

    fn end(&self, key: UtteranceKey) -> Option<(Duration, &EventKind)> {
        let (at, kind) = self.known[&key].end.as_ref()?;
        Some((*at - self.start, kind))
    }
}

fn speak(text: &str) -> Speak {
    Speak {
        text: text.to_owned(),
        flush: true,
        allow_interruption: true,
        replace: false,
        id: None,
        ssml: None,
    }
}

const fn complete(duration: Duration) -> EventKind {
    EventKind::Complete { duration }
}

fn interrupted(played: Duration, heard_text: &str) -> EventKind {
    let heard_text = heard_text.to_owned();
    EventKind::Interrupted { played, heard_text }
}

fn failed(played: Duration, heard_text: &str) -> EventKind {
    let heard_text = heard_text.to_owned();
    EventKind::Failed {
        error: problem(),
        played,
        heard_text,
    }
}

fn problem() -> Refusal {
    Refusal::new(ErrorCode::ProviderUnavailable, "nobody is there")
}

mod scenarios;

#[derive(Debug, Clone)]
enum Step {
    Speak(Speak),
    Clear,
    ClearId(u8),
    Pass(u64),
    /// So many chunks for the utterance that synthesis has.
    Sound(usize),
    /// The last chunk, shorter than the others.
    Done(u64),
    Fail,
    /// Sound, done or failed for an utterance that synthesis no longer has.
    Stale(usize),
    Hold(bool),
    Fill(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let text = prop::sample::select(vec![
        "",
        " ",
        "Yes.",
        "One two. Three ",
        "and four. ",
        "Well",
    ]);
    let speak = (text, any::<bool>(), any::<bool>(), 0..4u8).prop_map(|(text, flush, allow, n)| {
        Step::Speak(Speak {
            text: text.to_owned(),
            flush,
            allow_interruption: allow || n == 1,
            replace: n == 0,
            id: (n > 1).then(|| n.to_string()),
            ssml: None,
        })
    });
    prop_oneof![
        6 => speak,
        1 => Just(Step::Clear),
        1 => (2..4u8).prop_map(Step::ClearId),
        6 => (0..400u64).prop_map(Step::Pass),
        6 => (1..40usize).prop_map(Step::Sound),
        4 => (0..20u64).prop_map(Step::Done),
        1 => Just(Step::Fail),
        1 => (0..8usize).prop_map(Step::Stale),
        1 => any::<bool>().prop_map(Step::Hold),
        1 => any::<bool>().prop_map(Step::Fill),
    ]
}

fn take(stage: &mut Stage, step: Step) {
    let running = stage.running();
    match step {
        Step::Speak(speak) => {
            let _ = stage.speak(speak);
        }
        Step::Clear => stage.clear(),
        Step::ClearId(id) => stage.clear_id(&id.to_string()),
        Step::Pass(time) => stage.pass(ms(time)),
        Step::Hold(held) => stage.hold(held),
        Step::Fill(filling) => stage.fill(filling),
        Step::Sound(chunks) => {
            for _ in 0..chunks {
                let Some(key) = stage.running() else { return };
                let room = stage.queue.wants_sound();
                assert_eq!(stage.synthesise(key, CHUNK), room);
            }
        }
        Step::Done(last) => {
            if let Some(key) = running {
                stage.synthesise(key, ms(last));
                stage.done(key);
            }
        }
        Step::Fail => {
            if let Some(key) = running {
                stage.fail(key);
            }
        }
        Step::Stale(back) => {
            let stale = stage
                .known
                .iter()
                .rev()
                .filter(|(_, k)| !k.running)
                .nth(back);
            if let Some(key) = stale.map(|(&key, _)| key) {
                assert!(stage.synthesise(key, CHUNK));
                stage.done(key);
                stage.fail(key);
            }
        }
    }
}

/// Lets everything that was begun come to its end.
fn finish(stage: &mut Stage) {
    stage.hold(false);
    stage.fill(false);
    let _ = stage.speak(speak(""));
    // Each round ends at least one of them.
    for _ in 0..=stage.known.len() {
        if let Some(key) = stage.running() {
            while !stage.synthesise(key, CHUNK) {
                stage.pass(CHUNK);
            }
            stage.done(key);
        }
        stage.pass(MAX_SOUND + CHUNK);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn whatever_happens_every_promise_is_kept(
        lead in prop::sample::select(vec![ms(20), LEAD, Duration::MAX]),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut stage = Stage::new(lead);
        for step in steps {
            take(&mut stage, step);
        }
        finish(&mut stage);
        prop_assert!(stage.queue.is_idle() && stage.queue.waiting.is_zero());
        let paced = lead != Duration::MAX;
        for (key, known) in &stage.known {
            let Some((at, kind)) = &known.end else {
                return Err(TestCaseError::fail(format!("{key:?} never ended")));
            };
            let whole = known.left.len() == known.brought;
            let as_promised = match kind {
                EventKind::Started | EventKind::Progress { .. } => false,
                // Cut: the rest is lost. Else: samples in are samples out.
                EventKind::Interrupted { .. } => known.cut.is_some(),
                EventKind::Complete { .. } => whole && !known.failed && known.cut.is_none(),
                EventKind::Failed { .. } => whole && known.failed && known.cut.is_none(),
            };
            prop_assert!(as_promised, "{key:?} {known:?}");
            // Told within a chunk of the real end, unless it had to wait for those before it.
            let before = stage.known.range(..key).filter_map(|(_, k)| k.end.as_ref()).map(|(at, _)| *at);
            let last = known.left.last().map(|(begins, _)| *begins);
            let heard = known.until.into_iter().chain(last);
            let due = heard.chain(known.synthesised).chain(before).max();
            if let Some(due) = due.filter(|_| paced && known.cut.is_none() && known.synthesised.is_some()) {
                prop_assert!(*at <= due + CHUNK, "{key:?} is told {:?} late", *at - due);
            }
        }
    }
}
