//! Kamailio as the proxy of a telephone network: it challenges with 407, stays in the route set, and forwards authenticated
//! requests.

use super::{Program, listened, ports};

/// A proxy. Dropping it ends it.
pub struct Kamailio {
    _program: Program,
    /// Where it listens.
    pub port: u16,
}

impl Kamailio {
    /// A proxy before the telephone at this port that wants this user's password.
    pub async fn start(telephone: u16, user: &str, password: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = ports(2);
        let check = format!(
            "if ($au != \"{user}\" || !pv_proxy_authenticate(\"proxy\", \"{password}\", \"0\"))"
        );
        let text = CONFIGURATION
            .replace("PORT", &port.to_string())
            .replace("TELEPHONE", &telephone.to_string())
            .replace("CHECK", &check);
        let file = folder.path().join("kamailio.cfg");
        std::fs::write(&file, text).unwrap();
        let program = Program::start("kamailio", folder, |command| {
            // In the foreground, logging to standard error, with little memory: the default is for large sites.
            command.arg("-f").arg(file);
            command.args([
                "-DD", "-E", "-m", "16", "-M", "4", "-w", ".", "-Y", ".", "-n", "1",
            ]);
        });
        listened("udp", port).await;
        Self {
            _program: program,
            port,
        }
    }
}

const CONFIGURATION: &str = r#"
listen=udp:127.0.0.1:PORT
children=1
disable_tcp=yes
auto_aliases=no
log_stderror=yes
debug=2
loadmodule "tm.so"
loadmodule "sl.so"
loadmodule "rr.so"
loadmodule "pv.so"
loadmodule "maxfwd.so"
loadmodule "textops.so"
loadmodule "siputils.so"
loadmodule "auth.so"

request_route {
    if (!mf_process_maxfwd_header("10")) { exit; }
    if (is_method("CANCEL")) {
        if (t_check_trans()) { t_relay(); }
        exit;
    }
    if (is_method("ACK")) {
        if (has_totag()) { loose_route(); }
        t_relay();
        exit;
    }
    if (!(has_totag() && is_method("BYE|NOTIFY"))) {
        CHECK {
            proxy_challenge("proxy", "0");
            exit;
        }
        consume_credentials();
    }
    if (has_totag()) {
        loose_route();
        t_relay();
        exit;
    }
    record_route();
    $du = "sip:127.0.0.1:TELEPHONE";
    t_relay();
}
"#;
