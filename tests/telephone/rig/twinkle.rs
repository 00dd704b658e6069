//! Twinkle for the command line. Its sound card is one of ALSA's plugins that reads from a pipe and writes a file: the pipe is
//! its clock, as a microphone is.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::softphone::{Kind, Softphone, Words, heard};
use super::{Program, listened, ports, tone};
use crate::harness::run;
use crate::telephone::NUMBER;

const WORDS: Words = Words {
    refuse: "reject",
    hang_up: "bye",
    hold: &["hold"],
    resume: &["retrieve"],
    redirect: "redirect {}",
    press: "dtmf {}",
    rings: "incoming call",
    established: &["call established", "far end answered call"],
    closed: &["call ended", "ended call", "cancelled call"],
    held: "re-INVITE successful",
    resumed: "re-INVITE successful",
    key: "DTMF detected: ",
    registered: ("output", "registration succeeded"),
    not_registered: ("output", "registration failed: 403"),
};

pub async fn start(kind: Kind<'_>) -> Softphone {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_owned();
    let (codec, rate) = kind.sound();
    tone::wav(&home.join("tone.wav"), rate, kind.hertz, 60);
    let microphone = home.join("microphone");
    run("mkfifo", [&microphone]);
    let port = ports(20);
    let card = CARD
        .replace("MICROPHONE", &microphone.display().to_string())
        .replace("HEARD", &heard(&home).display().to_string());
    std::fs::write(home.join(".asoundrc"), card).unwrap();
    let settings = home.join(".twinkle");
    std::fs::create_dir(&settings).unwrap();
    let machine = MACHINE
        .replace("MEDIA", &(port + 4).to_string())
        .replace("PORT", &port.to_string());
    std::fs::write(settings.join("twinkle.sys"), machine).unwrap();
    std::fs::write(settings.join("telephone.cfg"), user(&kind, codec)).unwrap();
    second_of_its_own().await;
    let program = Program::typed_to("twinkle-console", folder, |command| {
        command.arg("telephone.cfg").env("HOME", &home);
    });
    listened("udp", port).await;
    let said = tone::samples(&home.join("tone.wav"));
    let said = said.iter().flat_map(|sample| sample.to_le_bytes());
    tokio::spawn(speak(microphone, said.collect(), rate));
    Softphone::new(program, &WORDS, port, rate)
}

/// Waits for a second in which no other one has been started. It draws its Call-IDs and branches by the second in which it
/// starts, so that two of one second would have the same, and one call could be taken for a repetition of the other.
async fn second_of_its_own() {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    loop {
        let second = now();
        if LAST.fetch_max(second, Ordering::Relaxed) < second {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Says this again and again into a pipe, as fast as it is said, while somebody listens.
async fn speak(microphone: PathBuf, said: Vec<u8>, rate: u32) {
    const PIECE: Duration = Duration::from_millis(20);
    let pieces = said.chunks_exact(rate as usize / 50 * 2);
    loop {
        // Nobody is there to listen except in calls.
        let Ok(mut pipe) = pipe::OpenOptions::new().open_sender(&microphone) else {
            if !microphone.exists() {
                return;
            }
            tokio::time::sleep(PIECE).await;
            continue;
        };
        let mut clock = tokio::time::interval(PIECE);
        for piece in pieces.clone().cycle() {
            clock.tick().await;
            if pipe.write_all(piece).await.is_err() {
                break;
            }
        }
    }
}

fn user(kind: &Kind, codec: &str) -> String {
    let codec = match codec {
        "PCMU" => "g711u",
        "PCMA" => "g711a",
        other => panic!("Debian's Twinkle has no {other}"),
    };
    let mut text = format!("{USER}codecs={codec}\n");
    let name = kind.registrar.and(kind.credentials).map(|(name, _)| name);
    text += &format!("user_name={}\n", name.unwrap_or(NUMBER));
    if kind.by_tcp {
        text += "sip_transport=tcp\n";
    }
    if kind.keys_by_info {
        text += "dtmf_transport=info\n";
    }
    if let Some((user, password)) = kind.credentials {
        text += &format!("auth_name={user}\nauth_pass={password}\n");
    }
    if let Some(registrar) = kind.registrar {
        text += &format!("registrar={registrar}\nregister_at_startup=yes\nregistration_time=60\n");
    }
    text
}

const CARD: &str = r#"
pcm.microphone { type file slave.pcm "null" file "/dev/null" infile "MICROPHONE" format "raw" }
pcm.speaker { type file slave.pcm "null" file "HEARD" format "wav" }
"#;

const MACHINE: &str = "\
dev_mic=alsa:microphone
dev_speaker=alsa:speaker
dev_ringtone=alsa:null
validate_audio_dev=no
play_ringtone=no
play_ringback=no
sip_port=PORT
rtp_port=MEDIA
";

// Its detection of speech takes a tone for silence, of which it sends nothing.
const USER: &str = "\
user_domain=127.0.0.1
user_display=Telephone
speex_dsp_vad=no
speex_dsp_agc=no
zrtp_enabled=no
register_at_startup=no
pres_publish_startup=no
allow_refer=yes
ask_user_to_refer=no
";
