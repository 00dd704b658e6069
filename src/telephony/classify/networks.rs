//! The tones of telephone networks, by country. They are data: of ITU-T Recommendation E.180/Q.35, Supplement 2 ("Various
//! tones used in national networks") and the ITU's list of February 2003, of BT's SIN 350 for the United Kingdom, of AS/CA
//! S002 for Australia, and of Telcordia's GR-506 for North America; where a list gives ranges, its first value is here.

use vivavoce_audio::tones::Tone;
use vivavoce_core::call::AnswerReason;

/// How far a frequency may be off, in hertz: what exchanges are allowed, and what is measured of a short tone.
const OFF_HZ: f32 = 22.0;
/// Two frequencies at least so far apart are told apart.
const APART_HZ: f32 = 90.0;
/// How far a length may be off: this share of it, and at least so many milliseconds.
const OFF_PERCENT: u64 = 15;
const OFF_MS: u64 = 45;

/// A tone, interrupted in a rhythm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cadence {
    /// One frequency, or two at once.
    pub hz: &'static [u16],
    /// Milliseconds of sound, of pause, of sound and so on; none is a continuous tone.
    pub ms: &'static [u16],
}

/// The tones of one country.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// ISO 3166-1 code.
    pub country: &'static str,
    /// Its calling codes.
    pub codes: &'static [&'static str],
    /// It rings there.
    pub ringing: Cadence,
    /// The number is busy.
    pub busy: Cadence,
    /// There is no line.
    pub congestion: Cadence,
    /// A continuous tone that says that a number cannot be called.
    pub unobtainable: Option<Cadence>,
}

const fn cadence(hz: &'static [u16], ms: &'static [u16]) -> Cadence {
    Cadence { hz, ms }
}

/// A network without a tone for numbers that cannot be called.
const fn network(
    country: &'static str,
    codes: &'static [&'static str],
    ringing: Cadence,
    busy: Cadence,
    congestion: Cadence,
) -> Network {
    Network {
        country,
        codes,
        ringing,
        busy,
        congestion,
        unobtainable: None,
    }
}

/// The networks. The first of those with the same tone gives it its name where the country of a call is not known.
pub const NETWORKS: &[Network] = &[
    network(
        "US",
        &["1"],
        cadence(&[440, 480], &[2_000, 4_000]),
        cadence(&[480, 620], &[500, 500]),
        cadence(&[480, 620], &[250, 250]),
    ),
    Network {
        unobtainable: Some(cadence(&[400], &[])),
        ..network(
            "GB",
            &["44"],
            cadence(&[400, 450], &[400, 200, 400, 2_000]),
            cadence(&[400], &[375, 375]),
            cadence(&[400], &[400, 350, 225, 525]),
        )
    },
    network(
        "DE",
        &["49"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[480, 480]),
        cadence(&[425], &[240, 240]),
    ),
    network(
        "FR",
        &["33"],
        cadence(&[440], &[1_500, 3_500]),
        cadence(&[440], &[500, 500]),
        cadence(&[440], &[250, 250]),
    ),
    network(
        "IT",
        &["39"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[500, 500]),
        cadence(&[425], &[200, 200]),
    ),
    network(
        "ES",
        &["34"],
        cadence(&[425], &[1_500, 3_000]),
        cadence(&[425], &[200, 200]),
        cadence(&[425], &[200, 200, 200, 200, 200, 600]),
    ),
    network(
        "NL",
        &["31"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[500, 500]),
        cadence(&[425], &[250, 250]),
    ),
    network(
        "BE",
        &["32"],
        cadence(&[425], &[1_000, 3_000]),
        cadence(&[425], &[500, 500]),
        cadence(&[425], &[167, 167]),
    ),
    network(
        "CH",
        &["41"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[500, 500]),
        cadence(&[425], &[200, 200]),
    ),
    network(
        "AT",
        &["43"],
        cadence(&[420], &[1_000, 5_000]),
        cadence(&[420], &[400, 400]),
        cadence(&[420], &[200, 200]),
    ),
    network(
        "PL",
        &["48"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[500, 500]),
        cadence(&[425], &[500, 500]),
    ),
    network(
        "CZ",
        &["420"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[330, 330]),
        cadence(&[425], &[165, 165]),
    ),
    network(
        "HU",
        &["36"],
        cadence(&[425], &[1_250, 3_750]),
        cadence(&[425], &[300, 300]),
        cadence(&[425], &[300, 300]),
    ),
    network(
        "SE",
        &["46"],
        cadence(&[425], &[1_000, 5_000]),
        cadence(&[425], &[250, 250]),
        cadence(&[425], &[250, 750]),
    ),
    network(
        "NO",
        &["47"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[500, 500]),
        cadence(&[425], &[200, 200]),
    ),
    network(
        "DK",
        &["45"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[500, 500]),
        cadence(&[425], &[200, 200]),
    ),
    network(
        "FI",
        &["358"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[300, 300]),
        cadence(&[425], &[200, 200]),
    ),
    network(
        "PT",
        &["351"],
        cadence(&[425], &[1_000, 5_000]),
        cadence(&[425], &[500, 500]),
        cadence(&[425], &[200, 200]),
    ),
    network(
        "RU",
        &["7"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[350, 350]),
        cadence(&[425], &[175, 175]),
    ),
    network(
        "JP",
        &["81"],
        cadence(&[400], &[1_000, 2_000]),
        cadence(&[400], &[500, 500]),
        cadence(&[400], &[500, 500]),
    ),
    network(
        "CN",
        &["86"],
        cadence(&[450], &[1_000, 4_000]),
        cadence(&[450], &[350, 350]),
        cadence(&[450], &[700, 700]),
    ),
    network(
        "IN",
        &["91"],
        cadence(&[400], &[400, 200, 400, 2_000]),
        cadence(&[400], &[750, 750]),
        cadence(&[400], &[250, 250]),
    ),
    network(
        "AU",
        &["61"],
        cadence(&[413, 438], &[400, 200, 400, 2_000]),
        cadence(&[425], &[375, 375]),
        cadence(&[425], &[375, 375]),
    ),
    network(
        "NZ",
        &["64"],
        cadence(&[400, 450], &[400, 200, 400, 2_000]),
        cadence(&[400], &[500, 500]),
        cadence(&[400], &[250, 250]),
    ),
    network(
        "BR",
        &["55"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[250, 250]),
        cadence(&[425], &[250, 250, 750, 250]),
    ),
    network(
        "MX",
        &["52"],
        cadence(&[425], &[1_000, 4_000]),
        cadence(&[425], &[250, 250]),
        cadence(&[425], &[250, 250]),
    ),
];

/// The network of a number that begins with `+`.
pub fn of_number(number: &str) -> Option<&'static Network> {
    let digits = number.strip_prefix('+')?;
    let code_of = |network: &Network| {
        let codes = network
            .codes
            .iter()
            .filter(|code| digits.starts_with(**code));
        codes.map(|code| code.len()).max()
    };
    let found = NETWORKS.iter().filter_map(|one| Some((code_of(one)?, one)));
    found.max_by_key(|(length, _)| *length).map(|(_, one)| one)
}

/// Whether a length is this one.
fn lasts(ms: u64, due: u16) -> bool {
    let due = u64::from(due);
    ms.abs_diff(due) <= (due * OFF_PERCENT / 100).max(OFF_MS)
}

impl Cadence {
    /// Whether a tone has these frequencies.
    pub fn sounds_like(&self, tone: &Tone) -> bool {
        let near = |hz: f32, due: u16| (hz - f32::from(due)).abs() <= OFF_HZ;
        match *self.hz {
            [one] => tone.is_at(f32::from(one), OFF_HZ),
            // Measured as one between them.
            [low, high] if f32::from(high - low) < APART_HZ => {
                let (low, high) = (f32::from(low) - OFF_HZ, f32::from(high) + OFF_HZ);
                tone.high_hz.is_none() && (low..=high).contains(&tone.low_hz)
            }
            [low, high] => near(tone.low_hz, low) && tone.high_hz.is_some_and(|hz| near(hz, high)),
            _ => false,
        }
    }

    /// Whether two tones, one after the other, are part of it.
    fn has(&self, first: &Tone, second: &Tone) -> bool {
        let pause = second.start.saturating_sub(first.end) / 16;
        let sounds = self.ms.chunks_exact(2).enumerate();
        let mut sounds = sounds.filter_map(|(n, pair)| {
            let [sound, pause] = *pair else { return None };
            let next = self.ms.get(2 * (n + 1)).or(self.ms.first())?;
            Some((sound, pause, *next))
        });
        self.sounds_like(first)
            && self.sounds_like(second)
            && sounds.any(|(sound, silence, next)| {
                lasts(first.ms(), sound) && lasts(pause, silence) && lasts(second.ms(), next)
            })
    }
}

/// Whether two tones, one after the other, say that a number is busy or that there is no line: there, else anywhere.
pub fn refusal(own: Option<&'static Network>, first: &Tone, second: &Tone) -> Option<AnswerReason> {
    let mut networks = own.into_iter().chain(NETWORKS);
    networks.find_map(|network| {
        if network.busy.has(first, second) {
            Some(AnswerReason::BusyTone)
        } else if network.congestion.has(first, second) {
            Some(AnswerReason::CongestionTone)
        } else {
            None
        }
    })
}

/// Whether a tone is one with which a network tells how a call is, and no beep of a machine.
pub fn is_progress(tone: &Tone) -> bool {
    let dial = cadence(&[350, 440], &[]);
    let mut networks = NETWORKS.iter();
    dial.sounds_like(tone)
        || networks.any(|network| {
            let cadences = [network.ringing, network.busy, network.congestion];
            cadences.iter().any(|cadence| cadence.sounds_like(tone))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_of_a_number_is_that_of_the_longest_code() {
        let country = |number: &str| of_number(number).map(|network| network.country);
        assert_eq!(country("+14155550123"), Some("US"));
        assert_eq!(country("+4420123456"), Some("GB"));
        assert_eq!(country("+420123456789"), Some("CZ"));
        assert_eq!(country("+358401234567"), Some("FI"));
        assert_eq!(country("+99912345"), None);
        assert_eq!(country("101"), None);
    }

    #[test]
    fn the_table_can_be_heard() {
        for network in NETWORKS {
            for cadence in [network.ringing, network.busy, network.congestion] {
                assert!(matches!(cadence.hz.len(), 1 | 2), "{network:?}");
                assert!(
                    cadence.ms.len() >= 2 && cadence.ms.len() % 2 == 0,
                    "{network:?}"
                );
                assert!(cadence.hz.is_sorted(), "{network:?}");
            }
            assert_eq!(network.country.len(), 2);
            assert!(network.codes.iter().all(|code| code.parse::<u16>().is_ok()));
        }
    }

    #[test]
    fn a_rhythm_is_that_of_the_country_first() {
        let tone = |start: u64, ms: u64| Tone {
            low_hz: 425.0,
            high_hz: None,
            start: start * 16,
            end: (start + ms) * 16,
            spread_hz: 1.0,
            purity: 1.0,
        };
        let (first, second) = (tone(0, 250), tone(500, 250));
        let refused = |number| refusal(of_number(number), &first, &second);
        assert_eq!(refused("+4930123456"), Some(AnswerReason::CongestionTone));
        assert_eq!(refused("+4684123456"), Some(AnswerReason::BusyTone));
        assert!(refusal(None, &first, &second).is_some());
        // Ringing is no refusal.
        assert_eq!(refusal(None, &tone(0, 1_000), &tone(5_000, 1_000)), None);
        assert!(is_progress(&first));
        let beep = Tone {
            low_hz: 1_000.0,
            ..first
        };
        assert!(!is_progress(&beep));
    }
}
