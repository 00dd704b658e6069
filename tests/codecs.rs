//! The codecs against the programs of the field: what we encode is clean and exactly as long as it should be for
//! ffprobe and opusinfo, what sox, ffmpeg, lame and opusenc encode sounds right to us, and speech is found where flite
//! put it. A program that is missing fails the test with the name of its package.

use std::io::{Cursor, Write};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use vivavoce::audio::decode::{DecodeError, FileDecoder, FileLimits, StreamDecoder};
use vivavoce::audio::encode::StreamEncoder;
use vivavoce::audio::vad::{Vad, VadEvent, VadSettings};
use vivavoce::audio::{AudioFormat, Channels, Encoding, Layout, Pcm, SampleRate, linear16, wav};

const LIMITS: FileLimits = FileLimits {
    duration: Duration::from_mins(1),
};

/// Runs a program of a Debian package and returns what it printed on standard output and standard error.
fn run(package: &str, program: &str, arguments: &[&str], input: &[u8]) -> (Vec<u8>, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; install the package {package}"));
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program that has seen enough closes its end early.
            let _enough = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    });
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    (output.stdout, said)
}

fn sox(arguments: &str, input: &[u8]) -> Vec<u8> {
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    run("sox", "sox", &arguments, input).0
}

fn ffmpeg(arguments: &str, input: &[u8]) -> Vec<u8> {
    let arguments = format!("-v error -i - {arguments} -");
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    run("ffmpeg", "ffmpeg", &arguments, input).0
}

/// `input` in a file of its own, because some programs and some formats want to seek.
fn file(input: &[u8], suffix: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
    file.write_all(input).unwrap();
    file
}

fn say(text: &str) -> Vec<i16> {
    let out = file(b"", ".wav");
    let path = out.path().to_str().unwrap();
    run(
        "flite",
        "flite",
        &["-voice", "slt", "-t", text, "-o", path],
        b"",
    );
    let sound = decode_file(std::fs::read(path).unwrap()).unwrap();
    assert_eq!(sound.layout(), Layout::mono(SampleRate::HZ_16000));
    sound.into_samples()
}

/// Three and a half seconds of speech, 16 kHz mono, of a length that is no whole number of anything.
static SPEECH: LazyLock<Vec<i16>> = LazyLock::new(|| {
    let mut speech = say("The quick brown fox jumps over the lazy sleeping dog.");
    assert!(speech.len() > 48_000);
    speech.truncate(48_007);
    speech
});

fn speech_wav() -> Vec<u8> {
    let mut bytes = wav::header(
        Layout::mono(SampleRate::HZ_16000),
        Some(SPEECH.len() as u32 * 2),
    )
    .to_vec();
    bytes.extend_from_slice(&linear16::encode(&SPEECH));
    bytes
}

/// The speech at another rate and with other channels, converted by sox.
fn speech(layout: Layout) -> Pcm {
    let to = format!(
        "-t wav - -t raw -e signed -b 16 -r {} -c {} -",
        layout.rate.hz(),
        layout.channels.count()
    );
    let mut samples = Vec::new();
    linear16::decode(&sox(&to, &speech_wav()), &mut samples);
    Pcm::new(layout, samples)
}

fn collect(
    chunks: impl Iterator<Item = Result<Pcm, DecodeError>>,
) -> Result<Option<Pcm>, DecodeError> {
    let mut samples = Vec::new();
    let mut layout = None;
    for chunk in chunks {
        let chunk = chunk?;
        assert!(
            chunk.duration() <= Duration::from_secs(9),
            "an unbounded chunk"
        );
        assert_eq!(*layout.get_or_insert(chunk.layout()), chunk.layout());
        samples.extend_from_slice(chunk.samples());
    }
    Ok(layout.map(|layout| Pcm::new(layout, samples)))
}

fn decode_file(bytes: Vec<u8>) -> Result<Pcm, DecodeError> {
    let decoder = FileDecoder::open(Cursor::new(bytes), LIMITS)?;
    let layout = decoder.layout();
    Ok(collect(decoder)?.unwrap_or(Pcm::empty(layout)))
}

fn decode_stream(format: AudioFormat, bytes: &[u8], chunk: usize) -> Pcm {
    let mut decoder = StreamDecoder::new(format).unwrap();
    let mut samples = Vec::new();
    for piece in bytes.chunks(chunk) {
        for sound in decoder.push(piece) {
            samples.extend(sound.unwrap().into_samples());
        }
    }
    for sound in decoder.finish() {
        samples.extend(sound.unwrap().into_samples());
    }
    Pcm::new(decoder.layout().unwrap(), samples)
}

fn encode(format: AudioFormat, sound: &Pcm) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut encoder = StreamEncoder::new(format).unwrap();
        let mut bytes = Vec::new();
        let chunk = format.layout.samples_in(Duration::from_millis(20));
        for piece in sound.samples().chunks(chunk) {
            let piece = Pcm::new(format.layout, piece.to_vec());
            for encoded in encoder.push(&piece).await.unwrap() {
                bytes.extend_from_slice(&encoded.data);
            }
        }
        for encoded in encoder.finish().await.unwrap() {
            bytes.extend_from_slice(&encoded.data);
        }
        bytes
    })
}

/// Signal to noise in decibels of `heard` beside `meant`, at the shift up to `shifts` where it is best.
fn snr(meant: &[i16], heard: &[i16], shifts: usize) -> f64 {
    let ratio = |shift: usize, from: usize, samples: usize| {
        let (mut signal, mut noise) = (1.0, 1e-9);
        let heard = &heard[(shift + from).min(heard.len())..];
        for (&meant, &heard) in meant[from..].iter().take(samples).zip(heard) {
            let (meant, heard) = (f64::from(meant), f64::from(heard));
            let difference = meant - heard;
            signal += meant * meant;
            noise += difference * difference;
        }
        10.0 * (signal / noise).log10()
    };
    // A part in the middle tells which shift that is.
    let part = |shift: &usize| ratio(*shift, meant.len() / 3, PART);
    let best = (0..=shifts).max_by(|a, b| part(a).total_cmp(&part(b)));
    ratio(best.unwrap_or_default(), 0, meant.len())
}

/// So many samples tell how late a sound is.
const PART: usize = 4_000;

fn layouts() -> impl Iterator<Item = Layout> {
    [8_000u32, 16_000, 22_050, 24_000, 44_100, 48_000]
        .into_iter()
        .flat_map(|hz| {
            let rate = SampleRate::new(hz).unwrap();
            [Channels::Mono, Channels::Stereo].map(|channels| Layout::new(rate, channels))
        })
}

fn formats(encoding: Encoding) -> impl Iterator<Item = AudioFormat> {
    layouts()
        .filter(move |layout| encoding.output_rate(Some(layout.rate.hz().into())).is_ok())
        .map(move |layout| AudioFormat { encoding, layout })
}

/// What ffprobe says about a file, and that it has nothing to complain about.
fn ffprobe(bytes: &[u8], suffix: &str) -> (f64, u32, usize) {
    let file = file(bytes, suffix);
    let path = file.path().to_str().unwrap();
    let show = "stream=sample_rate,channels:format=duration";
    let arguments = [
        "-v",
        "warning",
        "-show_entries",
        show,
        "-of",
        "default=nk=1:nw=1",
        path,
    ];
    let (out, said) = run("ffmpeg", "ffprobe", &arguments, b"");
    // MP3 has no length of its own without a tag.
    let complaints = said
        .lines()
        .filter(|line| !line.contains("Estimating duration"));
    assert_eq!(complaints.collect::<Vec<_>>(), [""; 0], "{suffix}");
    let out = String::from_utf8(out).unwrap();
    let mut values = out.lines();
    let mut next = || values.next().unwrap().parse::<f64>().unwrap();
    let (hz, channels, duration) = (next(), next(), next());
    (duration, hz as u32, channels as usize)
}

#[test]
fn what_we_encode_is_clean_and_as_long_as_it_should_be_for_ffprobe() {
    for (encoding, suffix, tolerance) in [
        (Encoding::Wav, ".wav", 0.000_001),
        (Encoding::OggOpus, ".opus", 0.000_001),
        // Whole frames, and the delay of the encoder.
        (Encoding::Mp3, ".mp3", 0.13),
    ] {
        for format in formats(encoding) {
            let sound = speech(format.layout);
            let mut bytes = encode(format, &sound);
            if encoding == Encoding::Wav {
                let total = bytes.len() as u64;
                wav::patch_length(&mut bytes, total);
            }
            let (duration, hz, channels) = ffprobe(&bytes, suffix);
            let mut lasts = sound.duration().as_secs_f64();
            if encoding == Encoding::OggOpus {
                // ffprobe counts the pre-skip as sound.
                assert_eq!(hz, 48_000);
                lasts += 0.006_5;
            } else {
                assert_eq!(hz, format.layout.rate.hz());
            }
            assert_eq!(channels, format.layout.channels.count());
            assert!(
                (duration - lasts).abs() <= tolerance,
                "{format}: {duration} {lasts}"
            );
        }
    }
}

#[test]
fn opusinfo_has_no_complaint_and_agrees_on_the_length() {
    for format in formats(Encoding::OggOpus) {
        for seconds in [0.0, 0.01, 3.0] {
            let all = speech(format.layout);
            let take = format.layout.samples_in(Duration::from_secs_f64(seconds));
            let sound = Pcm::new(format.layout, all.samples()[..take].to_vec());
            let file = file(&encode(format, &sound), ".opus");
            let path = file.path().to_str().unwrap();
            let (out, said) = run("opus-tools", "opusinfo", &[path], b"");
            let out = String::from_utf8_lossy(&out).into_owned() + &said;
            assert!(!out.to_lowercase().contains("warning"), "{format}: {out}");
            let length = format!("Playback length: 0m:{seconds:06.3}s");
            assert!(out.contains(&length), "{format}, {length}: {out}");
            assert!(out.contains("ENCODER=vivavoce"), "{out}");
        }
    }
}

#[test]
fn others_hear_what_we_encode() {
    for (encoding, least) in [
        (Encoding::Linear16, 90.0),
        (Encoding::Wav, 90.0),
        (Encoding::Mulaw, 30.0),
        (Encoding::Alaw, 30.0),
        (Encoding::OggOpus, 18.0),
        (Encoding::Mp3, 12.0),
    ] {
        for hz in [16_000, 24_000] {
            let layout = Layout::mono(SampleRate::new(hz as u32).unwrap());
            let sound = speech(layout);
            let bytes = encode(AudioFormat { encoding, layout }, &sound);
            let raw = |kind: &str| {
                let arguments = format!("-v error -f {kind} -ar {hz} -ac 1 -i - -f s16le -");
                let arguments: Vec<_> = arguments.split_whitespace().collect();
                run("ffmpeg", "ffmpeg", &arguments, &bytes).0
            };
            let heard = match encoding {
                Encoding::Linear16 => raw("s16le"),
                Encoding::Mulaw => raw("mulaw"),
                Encoding::Alaw => raw("alaw"),
                _ => ffmpeg(&format!("-f s16le -ar {hz} -ac 1"), &bytes),
            };
            let mut samples = Vec::new();
            linear16::decode(&heard, &mut samples);
            let snr = snr(sound.samples(), &samples, 1_300);
            assert!(snr >= least, "{encoding} {hz}: {snr} dB");
        }
    }
}

/// The speech in a file of `suffix`, made by sox.
fn sox_file(arguments: &str, suffix: &str) -> Vec<u8> {
    let out = file(b"", suffix);
    let path = out.path().to_str().unwrap().to_owned();
    sox(&format!("-t wav - {arguments} {path}"), &speech_wav());
    std::fs::read(path).unwrap()
}

fn ffmpeg_file(arguments: &str, suffix: &str) -> Vec<u8> {
    let out = file(b"", suffix);
    let path = out.path().to_str().unwrap().to_owned();
    let arguments = format!("-v error -y -i - {arguments} {path}");
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    run("ffmpeg", "ffmpeg", &arguments, &speech_wav());
    std::fs::read(path).unwrap()
}

fn lame_file(arguments: &[&str]) -> Vec<u8> {
    let source = file(&speech_wav(), ".wav");
    let out = file(b"", ".mp3");
    let mut all = vec!["--silent"];
    all.extend(arguments);
    all.extend([
        source.path().to_str().unwrap(),
        out.path().to_str().unwrap(),
    ]);
    run("lame", "lame", &all, b"");
    std::fs::read(out.path()).unwrap()
}

fn opusenc_file(arguments: &[&str]) -> Vec<u8> {
    let source = file(&speech_wav(), ".wav");
    let out = file(b"", ".opus");
    let mut all = vec!["--quiet"];
    all.extend(arguments);
    all.extend([
        source.path().to_str().unwrap(),
        out.path().to_str().unwrap(),
    ]);
    run("opus-tools", "opusenc", &all, b"");
    std::fs::read(out.path()).unwrap()
}

#[test]
fn files_of_others_sound_right_and_say_how_long_they_are() {
    let files = [
        ("16 bit", sox_file("-b 16", ".wav"), 90.0),
        ("24 bit", sox_file("-b 24", ".wav"), 90.0),
        ("32 bit", sox_file("-b 32", ".wav"), 90.0),
        ("8 bit", sox_file("-b 8 -e unsigned", ".wav"), 20.0),
        ("float", sox_file("-b 32 -e float", ".wav"), 90.0),
        ("mu-law", sox_file("-e mu-law", ".wav"), 30.0),
        ("A-law", sox_file("-e a-law", ".wav"), 30.0),
        ("MS ADPCM", sox_file("-e ms-adpcm", ".wav"), 20.0),
        ("IMA ADPCM", ffmpeg_file("-c:a adpcm_ima_wav", ".wav"), 20.0),
        ("FLAC", sox_file("", ".flac"), 90.0),
        (
            "FLAC 24 bit",
            ffmpeg_file("-c:a flac -sample_fmt s32", ".flac"),
            90.0,
        ),
        ("MP3 VBR", lame_file(&["-V2"]), 15.0),
        ("MP3 64k", lame_file(&["-b", "64"]), 15.0),
    ];
    for (name, bytes, least) in files {
        let decoder = FileDecoder::open(Cursor::new(bytes.clone()), LIMITS).unwrap();
        let lasts = decoder.duration().unwrap().as_secs_f64();
        let expected = SPEECH.len() as f64 / 16_000.0;
        let sound = collect(decoder).unwrap().unwrap();
        assert_eq!(sound.layout(), Layout::mono(SampleRate::HZ_16000), "{name}");
        let snr = snr(&SPEECH, sound.samples(), 1);
        assert!(snr >= least, "{name}: {snr} dB");
        // ADPCM comes in whole blocks.
        assert!((lasts - expected).abs() < 0.07, "{name}: {lasts}");
        if least > 80.0 || name.starts_with("MP3") {
            assert_eq!(sound.frames(), SPEECH.len(), "{name}");
        }
    }
}

#[test]
fn opus_files_of_others_are_exact_to_the_sample_and_sound_right() {
    let expected = speech(Layout::mono(SampleRate::HZ_48000));
    for arguments in [
        &["--bitrate", "64"][..],
        &["--bitrate", "24", "--framesize", "60"],
    ] {
        let bytes = opusenc_file(arguments);
        let decoder = FileDecoder::open(Cursor::new(bytes), LIMITS).unwrap();
        let lasts = decoder.duration().unwrap();
        let sound = collect(decoder).unwrap().unwrap();
        assert_eq!(sound.frames(), SPEECH.len() * 3);
        assert_eq!(sound.duration(), lasts);
        let snr = snr(expected.samples(), sound.samples(), 2);
        assert!(snr >= 12.0, "{snr} dB");
    }
}

#[test]
fn stereo_stays_stereo_and_six_channels_become_one() {
    let stereo = decode_file(sox_file("-c 2 -r 44100", ".flac")).unwrap();
    let rate = SampleRate::new(44_100u32).unwrap();
    assert_eq!(stereo.layout(), Layout::new(rate, Channels::Stereo));
    let six = decode_file(sox_file("-c 6", ".wav")).unwrap();
    assert_eq!(six.layout(), Layout::mono(SampleRate::HZ_16000));
    assert!(snr(&SPEECH, six.samples(), 0) > 60.0);
}

#[test]
fn streams_of_others_sound_as_their_files_do() {
    let any = SampleRate::HZ_8000;
    for (name, encoding, bytes) in [
        (
            "wav to a pipe",
            Encoding::Wav,
            sox("-t wav - -t wav -", &speech_wav()),
        ),
        (
            "wav of ffmpeg",
            Encoding::Wav,
            ffmpeg("-f wav -c:a pcm_s16le", &speech_wav()),
        ),
        (
            "wav mu-law",
            Encoding::Wav,
            sox("-t wav - -e mu-law -t wav -", &speech_wav()),
        ),
        (
            "wav float",
            Encoding::Wav,
            ffmpeg("-f wav -c:a pcm_f32le", &speech_wav()),
        ),
        ("mp3 with a tag", Encoding::Mp3, lame_file(&["-V2"])),
        (
            "mp3 of ffmpeg",
            Encoding::Mp3,
            ffmpeg("-f mp3 -b:a 48k", &speech_wav()),
        ),
        (
            "mp3 of sox",
            Encoding::Mp3,
            sox("-t wav - -t mp3 -", &speech_wav()),
        ),
        ("opus", Encoding::OggOpus, opusenc_file(&[])),
    ] {
        let format = AudioFormat::mono(encoding, any);
        let whole = decode_stream(format, &bytes, bytes.len());
        for chunk in [1, 100, 4_096] {
            assert!(decode_stream(format, &bytes, chunk) == whole, "{name}");
        }
        if encoding == Encoding::OggOpus {
            // Opus has the declared rate, so it is decoded at it.
            assert_eq!(whole.rate(), any, "{name}");
            assert_eq!(whole.frames(), SPEECH.len().div_ceil(2), "{name}");
            continue;
        }
        let from_file = decode_file(bytes).unwrap();
        let snr = snr(from_file.samples(), whole.samples(), 0);
        assert!(snr > 60.0, "{name}: {snr} dB");
        assert_eq!(whole.frames(), from_file.frames(), "{name}");
        assert_eq!(whole.rate(), SampleRate::HZ_16000, "{name}");
    }
}

#[test]
fn a_file_of_more_sound_than_allowed_is_refused_on_the_way() {
    let limits = FileLimits {
        duration: Duration::from_secs(1),
    };
    let mut decoder = FileDecoder::open(Cursor::new(speech_wav()), limits).unwrap();
    assert!(matches!(
        decoder.find(Result::is_err),
        Some(Err(DecodeError::TooLong(_)))
    ));
    assert!(decoder.next().is_none());
}

/// A moment of every kind of file.
static SMALL_FILES: LazyLock<Vec<(&str, Vec<u8>)>> = LazyLock::new(|| {
    let cut = |suffix: &str, to: &str| {
        // FLAC's blocks are a quarter of a second each.
        let seconds = if suffix == ".flac" { 1.0 } else { 0.2 };
        let out = file(b"", suffix);
        let path = out.path().to_str().unwrap().to_owned();
        sox(
            &format!("-t wav - {to} {path} trim 0.5 {seconds}"),
            &speech_wav(),
        );
        std::fs::read(path).unwrap()
    };
    let sound = Pcm::new(
        Layout::mono(SampleRate::HZ_16000),
        SPEECH[8_000..11_200].to_vec(),
    );
    vec![
        ("wav", cut(".wav", "")),
        ("adpcm", cut(".wav", "-e ms-adpcm")),
        ("ima", cut(".wav", "-e ima-adpcm")),
        ("flac", cut(".flac", "")),
        ("mp3", cut(".mp3", "")),
        (
            "opus",
            encode(
                AudioFormat {
                    encoding: Encoding::OggOpus,
                    layout: sound.layout(),
                },
                &sound,
            ),
        ),
    ]
});

#[test]
fn a_file_cut_off_anywhere_gives_what_was_there_or_an_error() {
    for (name, bytes) in SMALL_FILES.iter() {
        let whole = decode_file(bytes.clone()).unwrap();
        assert!((3_000..=16_000).contains(&whole.frames()), "{name}");
        let step = (bytes.len() / 400).max(1);
        let mut longest = 0;
        for len in (0..bytes.len()).step_by(step) {
            if let Ok(part) = decode_file(bytes[..len].to_vec()) {
                // An MP3 decoder may take a cut first frame for sound.
                assert!(
                    part.frames() <= whole.frames() + 1_152,
                    "{name} cut at {len}"
                );
                longest = longest.max(part.frames());
            }
        }
        assert!(longest >= whole.frames() / 2, "{name}: {longest}");
    }
}

#[test]
fn what_is_no_sound_says_so() {
    for garbage in [
        &b""[..],
        b"RIFF",
        b"OggS",
        b"hello",
        &[0xFF; 5_000],
        &[0; 5_000],
    ] {
        let error = decode_file(garbage.to_vec()).unwrap_err().to_string();
        assert!(!error.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn damaged_files_never_panic(
        file in 0usize..6,
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..30),
        head_only: bool,
    ) {
        let mut bytes = SMALL_FILES[file].1.clone();
        for (at, bit) in damage {
            let most = if head_only { 200 } else { bytes.len() };
            bytes[at.index(most)] ^= 1 << bit;
        }
        let _either = decode_file(bytes.clone());
        for encoding in [Encoding::Wav, Encoding::OggOpus, Encoding::Mp3] {
            let format = AudioFormat::mono(encoding, SampleRate::HZ_16000);
            let mut decoder = StreamDecoder::new(format).unwrap();
            for piece in bytes.chunks(333) {
                decoder.push(piece).for_each(drop);
            }
            decoder.finish().for_each(drop);
        }
    }

    #[test]
    fn random_bytes_never_panic(magic in 0usize..7, bytes: Vec<u8>) {
        let magics = [&b""[..], b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0", b"OggS\0\x02", b"fLaC", b"ID3\x04\0\0", b"\xFF\xFB\x90\x64", b"RIFX"];
        let mut all = magics[magic].to_vec();
        all.extend(bytes);
        let _either = decode_file(all.clone());
        for encoding in Encoding::ALL {
            let format = AudioFormat::mono(encoding, SampleRate::HZ_16000);
            let mut decoder = StreamDecoder::new(format).unwrap();
            decoder.push(&all).for_each(drop);
            decoder.finish().for_each(drop);
        }
    }
}

/// Three sentences with pauses of a second, and where they are.
fn sentences() -> (Vec<i16>, Vec<(u64, u64)>) {
    let mut sound = vec![0; 16_000];
    let mut places = Vec::new();
    for text in [
        "Where is the station?",
        "Turn left at the corner.",
        "Thank you very much.",
    ] {
        let spoken = say(text);
        let loud = |&sample: &i16| sample.unsigned_abs() > 300;
        let first = spoken.iter().position(loud).unwrap();
        let last = spoken.iter().rposition(loud).unwrap();
        let start = sound.len() as u64;
        places.push((start + first as u64, start + last as u64));
        sound.extend(spoken);
        sound.extend(vec![0; 16_000]);
    }
    (sound, places)
}

#[test]
fn speech_is_found_where_it_is() {
    let (sound, places) = sentences();
    let mut vad = Vad::new(VadSettings::default());
    let events: Vec<_> = sound
        .chunks(320)
        .flat_map(|chunk| vad.push(chunk))
        .collect();
    let starts = events.iter().filter_map(|event| match event {
        VadEvent::SpeechStart { at } => Some(*at),
        _ => None,
    });
    let ends = events.iter().filter_map(|event| match event {
        VadEvent::SpeechEnd { at } => Some(*at),
        _ => None,
    });
    let found: Vec<_> = starts.zip(ends).collect();
    assert_eq!(found.len(), places.len(), "{events:?}");
    for ((start, end), (first, last)) in found.into_iter().zip(places) {
        // The network hears an onset about 40 ms late and an end about 60 ms late.
        assert!(start.abs_diff(first) < 16 * 150, "{start} {first}");
        assert!(end.abs_diff(last) < 16 * 150, "{end} {last}");
    }
}
