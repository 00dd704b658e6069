#!/bin/sh
# Prints vivavoce@.service, made of vivavoce.service: the same server with --takeover, by the name of an instance.
sed -e 's|^Description=.*|& (%i)|' -e 's|^ExecStart=.*|& --takeover|' -e '1,/^\[Unit\]/{/^#/d}' \
    "$(dirname "$(realpath "$0")")/vivavoce.service"
