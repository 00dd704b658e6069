//! Linphone for the command line: files are its sound card. Its log is read for what it does not print.

use std::fmt::Write as _;

use super::softphone::{Kind, Softphone, Words, heard};
use super::{Program, listened, ports, tone};
use crate::telephone::NUMBER;

const WORDS: Words = Words {
    refuse: "terminate",
    hang_up: "terminate",
    // What it plays goes on as music, which would be heard.
    hold: &["play silence.wav", "pause"],
    resume: &["play tone.wav", "resume"],
    redirect: "redirect all {}",
    press: "{}",
    rings: "Receiving new incoming call",
    established: &["Media streams established"],
    closed: &[" ended ("],
    held: "is now paused",
    resumed: "Media streams established",
    key: "Receiving tone ",
    registered: ("log", "to [LinphoneRegistrationOk]"),
    not_registered: ("log", "to [LinphoneRegistrationFailed]"),
};

/// Its codecs, each with the rate and the channels that it writes.
const CODECS: [(&str, u32, u8); 8] = [
    ("opus", 48_000, 2),
    ("speex", 16_000, 1),
    ("speex", 8_000, 1),
    ("PCMU", 8_000, 1),
    ("PCMA", 8_000, 1),
    ("GSM", 8_000, 1),
    ("G722", 8_000, 1),
    ("G729", 8_000, 1),
];

pub async fn start(kind: Kind<'_>) -> Softphone {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_owned();
    // It makes files there, and no folders.
    std::fs::create_dir_all(home.join(".local/share/linphone")).unwrap();
    let (codec, rate) = kind.sound();
    tone::wav(&home.join("tone.wav"), rate, kind.hertz, 60);
    tone::wav(&home.join("silence.wav"), rate, 0, 60);
    let port = ports(20);
    std::fs::write(home.join("settings"), settings(&kind, codec, port)).unwrap();
    let program = Program::typed_to("linphonec", folder, |command| {
        command.args(["-c", "settings", "-d", "6", "-l", "log"]);
        command.env("HOME", &home);
    });
    listened("udp", port).await;
    let mut telephone = Softphone::new(program, &WORDS, port, rate);
    telephone.command("soundcard use files");
    telephone.command("play tone.wav");
    telephone.command(&format!("record {}", heard(&home).display()));
    // They are carried out one after the other.
    telephone.command("ports");
    telephone.prints(&["sip port ="]).await;
    telephone
}

fn settings(kind: &Kind, codec: &str, port: u16) -> String {
    let mut text = SETTINGS
        .replace("NUMBER", NUMBER)
        .replace("FIRST", &(port + 4).to_string())
        .replace("LAST", &(port + 19).to_string())
        .replace("SECURE", &(port + 1).to_string())
        .replace("PORT", &port.to_string());
    let mut sip = String::new();
    if kind.encrypts {
        sip += "media_encryption=srtp\nmedia_encryption_mandatory=1\n";
    }
    if kind.keys_by_info {
        sip += "use_info=1\nuse_rfc2833=0\n";
    }
    if let Some(certificate) = kind.believes {
        let _ = writeln!(sip, "root_ca={}", certificate.display());
    }
    text = text.replace("MORE", &sip);
    for (number, (name, rate, channels)) in CODECS.iter().enumerate() {
        let enabled = u8::from(*name == codec);
        let _ = write!(
            text,
            "[audio_codec_{number}]\nmime={name}\nrate={rate}\nchannels={channels}\nenabled={enabled}\n"
        );
    }
    if let Some((user, password)) = kind.credentials {
        // It looks for a password by whom it calls as.
        let name = if kind.registrar.is_some() {
            user
        } else {
            NUMBER
        };
        let _ = write!(
            text,
            "[auth_info_0]\nusername={name}\nuserid={user}\npasswd={password}\n"
        );
        if let Some(registrar) = kind.registrar {
            let _ = write!(
                text,
                "[proxy_0]\nreg_proxy=<sip:{registrar}>\nreg_identity=sip:{user}@{registrar}\nreg_expires=60\n\
                 reg_sendregister=1\npublish=0\n"
            );
        }
    }
    text
}

const SETTINGS: &str = "\
[sip]
sip_port=PORT
sip_tcp_port=PORT
sip_tls_port=SECURE
bind_address=127.0.0.1
guess_hostname=0
use_ipv6=0
ipv6_migration_done=1
contact=\"Telephone\" <sip:NUMBER@127.0.0.1>
verify_server_certs=1
verify_server_cn=1
MORE
[rtp]
audio_rtp_port=FIRST-LAST
";
