//! A telephone of people without its window: commands are typed, and what it prints tells what happens. It plays a tone and
//! records what it hears. What is particular to one is in `linphone.rs` and `twinkle.rs`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::time::Duration;

use tokio::time::Instant;

use super::{PATIENCE, Program, linphone, tone, twinkle};

/// Whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Linphone,
    Twinkle,
}

impl Sort {
    pub const ALL: [Self; 2] = [Self::Linphone, Self::Twinkle];

    /// A telephone that speaks PCMU and plays 440 Hz.
    pub async fn start(self) -> Softphone {
        self.of(Kind::default()).await
    }

    /// Any telephone.
    pub async fn of(self, kind: Kind<'_>) -> Softphone {
        match self {
            Self::Linphone => linphone::start(kind).await,
            Self::Twinkle => twinkle::start(kind).await,
        }
    }
}

/// What sort of telephone.
#[derive(Debug, Clone, Copy)]
pub struct Kind<'a> {
    /// With the rate of its sound: `PCMU/8000`, `G722/16000`, `opus/48000`.
    pub codec: &'a str,
    /// The frequency that it plays.
    pub hertz: u32,
    /// It speaks with nobody without SRTP.
    pub encrypts: bool,
    /// It calls by TCP.
    pub by_tcp: bool,
    /// It presses keys by INFO.
    pub keys_by_info: bool,
    /// User name and password for challenges.
    pub credentials: Option<(&'a str, &'a str)>,
    /// Where it registers with those.
    pub registrar: Option<&'a str>,
    /// The certificate of whom it believes with TLS.
    pub believes: Option<&'a Path>,
}

impl Default for Kind<'_> {
    fn default() -> Self {
        Self {
            codec: "PCMU/8000",
            hertz: 440,
            encrypts: false,
            by_tcp: false,
            keys_by_info: false,
            credentials: None,
            registrar: None,
            believes: None,
        }
    }
}

impl Kind<'_> {
    /// The codec's name, and the rate of what it plays and records.
    pub fn sound(&self) -> (&str, u32) {
        let (name, rate) = self.codec.split_once('/').unwrap();
        (name, rate.parse().unwrap())
    }
}

/// What is typed to a telephone, and what it prints.
#[derive(Debug)]
pub struct Words {
    pub refuse: &'static str,
    pub hang_up: &'static str,
    pub hold: &'static [&'static str],
    pub resume: &'static [&'static str],
    /// `{}` is where to.
    pub redirect: &'static str,
    /// `{}` are the keys; each one alone where it is nothing else.
    pub press: &'static str,
    /// Printed when it is called.
    pub rings: &'static str,
    /// When somebody is spoken with, whoever has called.
    pub established: &'static [&'static str],
    /// When a call is over, or was none.
    pub closed: &'static [&'static str],
    pub held: &'static str,
    pub resumed: &'static str,
    /// Printed before a key that was pressed on the other side.
    pub key: &'static str,
    /// The file in which it tells of its registration, and what.
    pub registered: (&'static str, &'static str),
    pub not_registered: (&'static str, &'static str),
}

/// A telephone. Dropping it ends it.
pub struct Softphone {
    pub program: Program,
    /// Where it listens with UDP and TCP.
    pub port: u16,
    rate: u32,
    typed: ChildStdin,
    words: &'static Words,
    /// What it has printed up to here has been waited for.
    seen: usize,
}

impl Softphone {
    pub fn new(
        (program, typed): (Program, ChildStdin),
        words: &'static Words,
        port: u16,
        rate: u32,
    ) -> Self {
        Self {
            program,
            port,
            rate,
            typed,
            words,
            seen: 0,
        }
    }

    /// Where to call it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Types a command.
    pub fn command(&mut self, command: &str) {
        writeln!(self.typed, "{command}").unwrap();
    }

    /// Waits until it prints one of these, after what was waited for before.
    pub async fn prints(&mut self, any: &[&str]) {
        let seen = self.seen;
        self.seen = self.tells("output", seen, any).await;
    }

    /// Waits until one of these is in a file from some byte on; gives where it ends.
    async fn tells(&self, file: &str, from: usize, any: &[&str]) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.program.text(file);
            let new = text.get(from..).unwrap_or_default();
            let ends = any
                .iter()
                .filter_map(|told| Some(new.find(told)? + told.len()));
            if let Some(end) = ends.min() {
                return from + end;
            }
            assert!(Instant::now() < deadline, "nothing of {any:?}: {new}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Calls an address.
    pub fn dial(&mut self, address: &str) {
        self.command(&format!("call {address}"));
    }

    /// Waits until it is called.
    pub async fn rings(&mut self) {
        self.prints(&[self.words.rings]).await;
    }

    /// Waits until it is called, and takes the call.
    pub async fn answers(&mut self) {
        self.rings().await;
        self.command("answer");
        self.established().await;
    }

    /// Waits until it speaks with somebody.
    pub async fn established(&mut self) {
        self.prints(self.words.established).await;
    }

    /// Waits until its call is over.
    pub async fn closed(&mut self) {
        self.prints(self.words.closed).await;
    }

    /// Ends its call.
    pub fn hang_up(&mut self) {
        self.command(self.words.hang_up);
    }

    /// Does not take the call that comes.
    pub fn refuse(&mut self) {
        self.command(self.words.refuse);
    }

    /// Sends the call that comes somewhere else.
    pub fn redirect(&mut self, to: &str) {
        self.command(&self.words.redirect.replace("{}", to));
    }

    /// Asks the other side to call somebody else instead.
    pub fn transfer(&mut self, to: &str) {
        self.command(&format!("transfer {to}"));
    }

    /// Puts the other side on hold, which hears nothing then.
    pub async fn hold(&mut self) {
        for command in self.words.hold {
            self.command(command);
        }
        self.prints(&[self.words.held]).await;
    }

    /// Takes the other side up again.
    pub async fn resume(&mut self) {
        for command in self.words.resume {
            self.command(command);
        }
        self.prints(&[self.words.resumed]).await;
    }

    /// Presses keys.
    pub fn press(&mut self, digits: &str) {
        if self.words.press == "{}" {
            digits
                .chars()
                .for_each(|digit| self.command(&digit.to_string()));
        } else {
            self.command(&self.words.press.replace("{}", digits));
        }
    }

    /// Waits until it is told of these keys.
    pub async fn is_pressed(&mut self, digits: &str) {
        for digit in digits.chars() {
            self.prints(&[&format!("{}{digit}", self.words.key)]).await;
        }
    }

    /// Waits until it is registered.
    pub async fn registered(&self) {
        let (file, told) = self.words.registered;
        self.tells(file, 0, &[told]).await;
    }

    /// Waits until it is told that it cannot register.
    pub async fn not_registered(&self) {
        let (file, told) = self.words.not_registered;
        self.tells(file, 0, &[told]).await;
    }

    /// Waits until it hears this frequency; 0 is silence.
    pub async fn hears(&self, hertz: u32) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let samples = tone::samples(&heard(self.program.folder()));
            let heard = tone::heard(&samples, self.rate);
            if heard.abs_diff(hertz) <= 10 {
                return;
            }
            assert!(Instant::now() < deadline, "{heard} instead of {hertz} Hz");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Where it records what it hears: a WAV file.
pub fn heard(folder: &Path) -> PathBuf {
    folder.join("heard.wav")
}
