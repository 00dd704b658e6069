// Another generator of the load of `vivavoce bench sessions`, in another language and with other libraries, so that the
// numbers of the one can be held against the other's:
//
//	vivavoce say "..." --format linear16 --sample-rate 16000 -o speech.pcm
//	go run . -url ws://127.0.0.1:3001/ws -speech speech.pcm -sessions 400
//
// The server runs with NULL_ENABLED=true and limits for so many sessions. Each session sends 20 ms frames of 16 kHz
// linear16: two seconds of the speech of the file, with noise under it, and two seconds of that noise alone, 20 dB
// fainter, during which it asks for two seconds of speech. No two are at the same place of the file at one time.
//
// Measured is what a client sees: from `speak` to the first sound, and how much later than its time each piece of sound
// comes. The time of a piece is when it was asked for, and its place in the utterance less what the server sends ahead
// (-lead, the server's socket.lead_ms).
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

const (
	rate       = 16_000
	frame      = 20 * time.Millisecond
	frameBytes = rate / 50 * 2
	cycle      = 200 // frames
)

var (
	url      = flag.String("url", "ws://127.0.0.1:3001/ws", "the server")
	speech   = flag.String("speech", "", "raw linear16 at 16 kHz, mono; at least a few seconds")
	sessions = flag.Int("sessions", 200, "how many")
	seconds  = flag.Int("seconds", 20, "how long they are measured, after a warm-up of 6 s")
	lead     = flag.Duration("lead", 200*time.Millisecond, "what the server sends ahead")
	session  = flag.String("session", "{}", "fields of each session's config, as JSON")
)

// What all sessions have seen. Times are kept only while they are measured.
type seen struct {
	measuring           atomic.Bool
	sent, failures      atomic.Int64
	mutex               sync.Mutex
	answers, deviations []time.Duration
}

func (s *seen) keep(list *[]time.Duration, times ...time.Duration) {
	if !s.measuring.Load() {
		return
	}
	s.mutex.Lock()
	*list = append(*list, times...)
	s.mutex.Unlock()
}

func (s *seen) fail(number int, why any) {
	if s.failures.Add(1) == 1 {
		log.Printf("session %d: %v", number, why)
	}
}

// sounds makes speech in noise, and that noise, of the samples of a file.
func sounds(file []byte) (voice, noise []byte) {
	samples := make([]float64, len(file)/2)
	loudest, energy, voiced := 0.0, 0.0, 0
	for n := range samples {
		samples[n] = float64(int16(uint16(file[2*n]) | uint16(file[2*n+1])<<8))
		loudest = max(loudest, math.Abs(samples[n]))
	}
	for _, sample := range samples {
		if math.Abs(sample) > loudest/100 {
			energy += sample * sample
			voiced++
		}
	}
	loudness := 1640 / math.Sqrt(energy/float64(max(voiced, 1)))
	random := rand.New(rand.NewSource(20261127))
	var low float64
	put := func(to []byte, sample float64) []byte {
		value := uint16(int16(max(-32768, min(32767, sample))))
		return append(to, byte(value), byte(value>>8))
	}
	for _, sample := range samples {
		// Noise that falls by 6 dB per octave above 300 Hz, as rooms have it.
		low += 0.11 * (random.NormFloat64() - low)
		hum := 164 * low / 0.24
		voice = put(voice, sample*loudness+hum)
		noise = put(noise, hum)
	}
	return voice, noise
}

type client struct {
	number int
	socket *websocket.Conn
	seen   *seen
	mutex  sync.Mutex
	asked  time.Time
	bytes  int
}

func connect(number int, fields map[string]any, seen *seen) (*client, error) {
	socket, _, err := websocket.DefaultDialer.Dial(*url, nil)
	if err != nil {
		return nil, err
	}
	config := map[string]any{
		"type":       "config",
		"stt_config": map[string]any{"provider": "null", "sample_rate": rate},
		"tts_config": map[string]any{"provider": "null", "model": "", "audio_format": "linear16", "sample_rate": rate},
	}
	for name, value := range fields {
		config[name] = value
	}
	if err := socket.WriteJSON(config); err != nil {
		return nil, err
	}
	var ready struct{ Type string }
	if err := socket.ReadJSON(&ready); err != nil || ready.Type != "ready" {
		return nil, fmt.Errorf("the server answered %q: %w", ready.Type, err)
	}
	return &client{number: number, socket: socket, seen: seen}, nil
}

func (c *client) speak(voice, noise []byte, begin time.Time) {
	// No frame reaches over the end of the file.
	places := (len(voice) - frameBytes) / 2
	for n := 0; ; n++ {
		time.Sleep(time.Until(begin.Add(time.Duration(n) * frame)))
		if n%cycle == 0 {
			text := fmt.Sprintf("Session %05d speaks for the %04d", c.number, n/cycle)
			c.mutex.Lock()
			c.asked, c.bytes = time.Now(), 0
			c.mutex.Unlock()
			if err := c.socket.WriteJSON(map[string]string{"type": "speak", "text": text}); err != nil {
				c.seen.fail(c.number, err)
				return
			}
		}
		sound := noise
		if n%cycle >= cycle/2 {
			sound = voice
		}
		place := (places*c.number / *sessions + n*frameBytes/2) % places * 2
		if err := c.socket.WriteMessage(websocket.BinaryMessage, sound[place:place+frameBytes]); err != nil {
			c.seen.fail(c.number, err)
			return
		}
		c.seen.sent.Add(1)
	}
}

func (c *client) hear() {
	for {
		kind, message, err := c.socket.ReadMessage()
		now := time.Now()
		if err != nil {
			c.seen.fail(c.number, err)
			return
		}
		if kind == websocket.TextMessage {
			var event struct{ Type string }
			if json.Unmarshal(message, &event) != nil || event.Type == "error" {
				c.seen.fail(c.number, string(message))
			}
			continue
		}
		c.mutex.Lock()
		asked, before := c.asked, c.bytes
		c.bytes += len(message)
		c.mutex.Unlock()
		if before == 0 {
			c.seen.keep(&c.seen.answers, now.Sub(asked))
		}
		place := time.Duration(before) * time.Second / (rate * 2)
		c.seen.keep(&c.seen.deviations, now.Sub(asked.Add(max(0, place-*lead))))
	}
}

func spread(name string, times []time.Duration) {
	if len(times) == 0 {
		fmt.Printf("%s: none\n", name)
		return
	}
	slices.Sort(times)
	at := func(share float64) float64 {
		return float64(times[int(share*float64(len(times)-1))]) / float64(time.Millisecond)
	}
	fmt.Printf("%s: p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, most %.2f ms, of %d\n",
		name, at(0.5), at(0.9), at(0.99), at(0.999), at(1), len(times))
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	file, err := os.ReadFile(*speech)
	if err != nil {
		log.Fatal(err)
	}
	if len(file) < 4*rate {
		log.Fatalf("%s is shorter than two seconds", *speech)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(*session), &fields); err != nil {
		log.Fatalf("-session must be a JSON object: %v", err)
	}
	voice, noise := sounds(file)
	seen := &seen{}
	clients := make([]*client, *sessions)
	for number := range clients {
		if clients[number], err = connect(number, fields, seen); err != nil {
			log.Fatal(err)
		}
	}
	begin := time.Now()
	for number, client := range clients {
		// Over a cycle, and a frame, so that neither frames nor requests come all at once.
		share := (cycle + 1) * frame * time.Duration(number) / time.Duration(len(clients))
		go client.hear()
		go client.speak(voice, noise, begin.Add(share))
	}
	time.Sleep(6 * time.Second)
	seen.measuring.Store(true)
	before := seen.sent.Load()
	time.Sleep(time.Duration(*seconds) * time.Second)
	seen.measuring.Store(false)
	sent := seen.sent.Load() - before
	expected := int64(*sessions) * int64(*seconds) * 50
	fmt.Printf("%d sessions, %d s: %.1f %% of the frames sent, %d failures\n",
		*sessions, *seconds, 100*float64(sent)/float64(expected), seen.failures.Load())
	seen.mutex.Lock()
	defer seen.mutex.Unlock()
	spread("answer", seen.answers)
	spread("late", seen.deviations)
	if seen.failures.Load() > 0 {
		os.Exit(1)
	}
}
