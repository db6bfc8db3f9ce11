#!/bin/sh
# Reads a text from babble with curl: in pieces as they are generated, then as a whole.
#
#     client_curl.sh [--url host:port]

set -eu
url=localhost:8000
[ "${1-}" != --url ] || url=$2
model=http://$url/v2/models/babble

pieces=$(curl -sSN --fail-with-body "$model/generate_stream" \
    -d '{"text_input": "the server", "stream": true, "max_tokens": 8, "min_tokens": 8, "temperature": 0}')
echo "$pieces"
[ "$(echo "$pieces" | grep -c '^data: .*"text_output"')" -gt 2 ]

whole=$(curl -sS --fail-with-body "$model/generate" \
    -d '{"text_input": "the server", "max_tokens": 8, "min_tokens": 8, "temperature": 0, "exclude_input_in_output": true}')
echo "$whole"

# The texts of the pieces, one after another, are the whole text.
text() { sed -n 's/.*"text_output":"\([^"]*\)".*/\1/p' | tr -d '\n'; }
[ "$(echo "$pieces" | text)" = "$(echo "$whole" | text)" ]

echo "PASS: text_generation"
