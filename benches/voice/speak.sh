#!/bin/sh
# Speaks sentences.txt with every local engine into WAV files, for recognisers to be compared on:
# benches/voice/speak.sh PATH/TO/vivavoce FOLDER. MODELS_PATH names the models.
set -eu
vivavoce=$1
folder=$2
here=$(dirname "$0")
for model in hibari piper flite espeak-ng; do
    mkdir -p "$folder/$model"
    n=0
    while IFS= read -r sentence; do
        n=$((n + 1))
        "$vivavoce" say --model "$model" "$sentence" -o "$folder/$model/$(printf %03d $n).wav" </dev/null
    done <"$here/sentences.txt"
done
