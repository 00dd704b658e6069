// A listener on pion, by LiveKit's SDK for Go, for run.py: tells each packet of sound and when it came. It has no jitter
// buffer; what is heard of a packet run.py decodes.
package main

import (
	"encoding/base64"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	lksdk "github.com/livekit/server-sdk-go/v2"
	"github.com/pion/webrtc/v4"
)

func main() {
	var output sync.Mutex
	say := func(format string, values ...any) {
		output.Lock()
		defer output.Unlock()
		fmt.Printf(format+"\n", values...)
	}
	listen := func(track *webrtc.TrackRemote) {
		for {
			packet, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			at := float64(time.Now().UnixMicro()) / 1e6
			payload := base64.StdEncoding.EncodeToString(packet.Payload)
			say(`{"event": "packet", "at": %.6f, "payload": "%s"}`, at, payload)
		}
	}
	callback := &lksdk.RoomCallback{ParticipantCallback: lksdk.ParticipantCallback{
		OnTrackSubscribed: func(track *webrtc.TrackRemote, _ *lksdk.RemoteTrackPublication, _ *lksdk.RemoteParticipant) {
			if mime := track.Codec().MimeType; !strings.EqualFold(mime, webrtc.MimeTypeOpus) {
				log.Fatalf("the track is %s, not Opus", mime)
			}
			say(`{"event": "listens"}`)
			go listen(track)
		},
	}}
	if _, err := lksdk.ConnectToRoomWithToken(os.Args[1], os.Args[2], callback); err != nil {
		log.Fatal(err)
	}
	select {}
}
