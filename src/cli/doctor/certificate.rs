//! Certificates that clients are shown: whether they can be used, and for how long.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::findings::Finding;
use crate::config::Settings;
use crate::server::{check_telephone, secure};

const DAY: Duration = Duration::from_hours(24);
/// Whoever renews certificates does it a month before; with less than this left nobody does.
const SOON: Duration = Duration::from_hours(24 * 14);

pub(super) fn look(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(error) = secure(settings) {
        let remedy =
            "give a certificate chain and its key as PEM files that the server's user may read";
        findings.push(Finding::wrong(
            "server.tls.cert, server.tls.key",
            error.to_string(),
            remedy,
        ));
    }
    if let Err(error) = check_telephone(settings) {
        findings.push(Finding::wrong(
            "telephone",
            error.to_string(),
            "mend the setting that it names",
        ));
    }
    let rtc = &settings.rtc;
    let files = [
        ("server.tls.cert", settings.server.tls_cert.as_deref()),
        ("rtc.turn.tls_cert", rtc.turn_tls_cert.as_deref()),
        ("sip.tls_cert", settings.sip.tls_cert.as_deref()),
    ];
    for (setting, file) in files {
        findings.extend(file.map(|file| term(setting, file, SystemTime::now())));
    }
    if settings.server.tls_cert.is_none() && !settings.server.host.is_loopback() {
        findings.push(Finding::note(
            "server.tls.cert",
            "none: sound, words and tokens go unencrypted unless a proxy in front of the server ends TLS",
        ));
    }
    findings
}

fn term(setting: &str, file: &Path, now: SystemTime) -> Finding {
    let what = format!("{setting} {}", file.display());
    let renew = "renew it; the server reads it when it starts";
    let end = match not_after(file) {
        Ok(end) => end,
        Err(problem) => return Finding::wrong(what, problem, "give a certificate chain in PEM"),
    };
    match end.duration_since(now) {
        Err(_) => Finding::wrong(what, "has expired", renew),
        Ok(left) if left < SOON => Finding::warning(
            what,
            format!("expires in {} days", left.as_secs() / DAY.as_secs()),
            renew,
        ),
        Ok(left) => Finding::good(
            what,
            format!("valid for {} days", left.as_secs() / DAY.as_secs()),
        ),
    }
}

/// The end of the first certificate of the chain, which is the server's own.
fn not_after(file: &Path) -> Result<SystemTime, String> {
    let der = CertificateDer::from_pem_file(file).map_err(|error| error.to_string())?;
    let certificate = Certificate::from_der(&der).map_err(|error| error.to_string())?;
    let validity = certificate.tbs_certificate().validity();
    Ok(UNIX_EPOCH + validity.not_after.to_unix_duration())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::doctor::findings::Verdict;

    #[test]
    fn a_certificate_is_judged_by_the_time_that_it_has() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(vec!["voice.example".to_owned()]).unwrap();
        wanted.not_before = rcgen::date_time_ymd(2020, 1, 1);
        wanted.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let pem = wanted.self_signed(&key).unwrap().pem();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cert.pem");
        fs::write(&file, pem).unwrap();
        let end = not_after(&file).unwrap();
        let verdict = |before_end: Duration| term("t", &file, end - before_end).verdict;
        assert_eq!(verdict(DAY * 15), Verdict::Good);
        assert_eq!(verdict(DAY * 13), Verdict::Warning);
        assert_eq!(term("t", &file, end + DAY).verdict, Verdict::Wrong);
        fs::write(&file, "none").unwrap();
        assert_eq!(term("t", &file, end).verdict, Verdict::Wrong);
    }
}
