//! baresip as a phone: controlled over its control socket, it plays a tone and records what it hears.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::{PATIENCE, Program, listened, ports, tone};
use crate::harness::events::Events;
use crate::telephone::NUMBER;

/// What sort of telephone.
pub struct Kind<'a> {
    /// As baresip writes it: `PCMU/8000`, `G722/16000`.
    pub codec: &'a str,
    /// The frequency that it plays; 0 for silence.
    pub hertz: u32,
    /// Sound that it plays instead: a WAV file of the codec's rate, mono.
    pub says: Option<PathBuf>,
    /// `srtp`, `srtp-mand` or `` for none.
    pub encryption: &'a str,
    /// `udp`, `tcp` or `tls`, for calls of its own.
    pub transport: &'a str,
    /// User name and password for challenges.
    pub credentials: Option<(&'a str, &'a str)>,
    /// Certificate and key in one PEM file; it listens for TLS only with that.
    pub certificate: Option<PathBuf>,
}

impl Default for Kind<'_> {
    fn default() -> Self {
        Self {
            codec: "PCMU/8000",
            hertz: 440,
            says: None,
            encryption: "",
            transport: "udp",
            credentials: None,
            certificate: None,
        }
    }
}

/// A telephone. Dropping it ends it.
pub struct Baresip {
    program: Program,
    /// Where it listens with UDP and TCP; with TLS at the next port.
    pub port: u16,
    rate: u32,
    control: OwnedWriteHalf,
    events: Arc<Events>,
    seen: usize,
    commands: u64,
}

impl Baresip {
    /// A telephone that takes calls by itself, speaks PCMU and plays 440 Hz.
    pub async fn start() -> Self {
        Self::of(Kind::default()).await
    }

    /// Any telephone.
    pub async fn of(kind: Kind<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = ports(20);
        let control = port + 2;
        let rate: u32 = kind.codec.rsplit('/').next().unwrap().parse().unwrap();
        let played = kind.says.clone().unwrap_or_else(|| {
            let file = folder.path().join("tone.wav");
            tone::wav(&file, rate, kind.hertz, 60);
            file
        });
        let path = folder.path().display().to_string();
        let certificate = kind.certificate.as_ref();
        let tls = certificate.map(|file| format!("sip_certificate {}\n", file.display()));
        let text = CONFIGURATION
            .replace("MEDIA", &format!("{}-{}", port + 4, port + 19))
            .replace("PORT", &port.to_string())
            .replace("CONTROL", &control.to_string())
            .replace("PLAYED", &played.display().to_string())
            .replace("RATE", &rate.to_string())
            .replace("FOLDER", &path);
        std::fs::write(
            folder.path().join("config"),
            text + &tls.unwrap_or_default(),
        )
        .unwrap();
        std::fs::write(folder.path().join("contacts"), "").unwrap();
        std::fs::write(folder.path().join("accounts"), account(&kind, port)).unwrap();
        let program = Program::start("baresip", folder, |command| {
            command.args(["-f", &path, "-v"]);
        });
        listened("tcp", control).await;
        listened("udp", port).await;
        let socket = TcpStream::connect(("127.0.0.1", control)).await.unwrap();
        let (read, control) = socket.into_split();
        let events = Arc::new(Events::default());
        tokio::spawn(listen(read, Arc::clone(&events)));
        Self {
            program,
            port,
            rate,
            control,
            events,
            seen: 0,
            commands: 0,
        }
    }

    /// Where to call it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The next event of this type, such as `CALL_ESTABLISHED`.
    pub async fn next(&mut self, kind: &str) -> Value {
        let wanted = |event: &Value| event["type"] == kind;
        match self.events.find(self.seen, PATIENCE, wanted).await {
            Ok((at, event)) => {
                self.seen = at + 1;
                event
            }
            Err(told) => panic!("baresip: no {kind} within {PATIENCE:?}: {told:?}"),
        }
    }

    /// The parameters of all events of this type.
    pub fn all(&self, kind: &str) -> Vec<String> {
        let events = self.events.all();
        let of_kind = events.iter().filter(|event| event["type"] == kind);
        of_kind
            .map(|event| event["param"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Carries out a command of its menu; gives what it answers.
    pub async fn command(&mut self, command: &str, parameters: &str) -> Value {
        self.commands += 1;
        let token = self.commands.to_string();
        let text = json!({"command": command, "params": parameters, "token": token}).to_string();
        let framed = format!("{}:{text},", text.len());
        self.control.write_all(framed.as_bytes()).await.unwrap();
        let answer = |event: &Value| event["response"] == true && event["token"] == *token;
        let found = self.events.find(0, PATIENCE, answer).await;
        found
            .unwrap_or_else(|told| panic!("baresip does not answer {command}: {told:?}"))
            .1
    }

    /// Calls an address.
    pub async fn dial(&mut self, address: &str) {
        self.command("dial", address).await;
    }

    /// Ends its call, or refuses it.
    pub async fn hang_up(&mut self) {
        self.command("hangup", "").await;
    }

    /// Presses keys.
    pub async fn press(&mut self, digits: &str) {
        for digit in digits.chars() {
            self.command("sndcode", &digit.to_string()).await;
        }
    }

    /// Waits until it hears this frequency; 0 is silence.
    pub async fn hears(&mut self, hertz: u32) {
        let mut heard = None;
        for _ in 0..PATIENCE.as_millis() / 100 {
            let recorded = self.recording("dec").map(|file| tone::samples(&file));
            heard = recorded.map(|samples| tone::heard(&samples, self.rate));
            if heard.is_some_and(|heard| heard.abs_diff(hertz) <= 10) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("baresip hears {heard:?} instead of {hertz} Hz");
    }

    /// The newest file in which it records what it hears (`dec`) or plays (`enc`).
    pub fn recording(&self, side: &str) -> Option<PathBuf> {
        let files = std::fs::read_dir(self.program.folder()).unwrap().flatten();
        let ending = format!("-{side}.wav");
        let recordings = files.filter(|file| file.file_name().to_string_lossy().ends_with(&ending));
        recordings.map(|file| file.path()).max()
    }
}

// It takes only calls to the user of its account.
fn account(kind: &Kind, port: u16) -> String {
    let (codec, transport) = (kind.codec, kind.transport);
    let mut account = format!(
        "<sip:{NUMBER}@127.0.0.1:{port};transport={transport}>;regint=0;answermode=auto;audio_codecs={codec}"
    );
    if !kind.encryption.is_empty() {
        account += &format!(";mediaenc={}", kind.encryption);
    }
    if let Some((user, password)) = kind.credentials {
        account += &format!(";auth_user={user};auth_pass={password}");
    }
    account + "\n"
}

/// Reads netstrings of JSON.
async fn listen(read: OwnedReadHalf, events: Arc<Events>) {
    let mut read = BufReader::new(read);
    loop {
        let mut length = Vec::new();
        if read.read_until(b':', &mut length).await.is_err() || length.is_empty() {
            return;
        }
        length.pop();
        let length: usize = String::from_utf8(length).unwrap().parse().unwrap();
        let mut text = vec![0; length + 1];
        if read.read_exact(&mut text).await.is_err() {
            return;
        }
        text.pop();
        if let Ok(event) = serde_json::from_slice(&text) {
            events.tell(event);
        }
    }
}

// srtp.so has to come before account.so. Recording is what sndfile.so does.
const CONFIGURATION: &str = "\
poll_method epoll
sip_listen 127.0.0.1:PORT
net_interface 127.0.0.1
dns_server 127.0.0.1:53
call_local_timeout 120
call_max_calls 30
audio_source aufile,PLAYED
audio_player aubridge,nil
ausrc_srate RATE
auplay_srate RATE
ausrc_channels 1
auplay_channels 1
audio_txmode thread
rtp_ports MEDIA
rtp_timeout 0
module_path /usr/lib/baresip/modules
module srtp.so
module g711.so
module g722.so
module aufile.so
module aubridge.so
module sndfile.so
module_tmp uuid.so
module_tmp account.so
module_app menu.so
module_app ctrl_tcp.so
ctrl_tcp_listen 127.0.0.1:CONTROL
snd_path FOLDER
";
