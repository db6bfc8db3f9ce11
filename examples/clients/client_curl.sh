#!/bin/sh
# Calls scale with curl: JSON, then binary tensors.
#
#     client_curl.sh [--url host:port]

set -eu
url=localhost:8000
[ "${1-}" != --url ] || url=$2
infer=http://$url/v2/models/scale/infer

answer=$(curl -sS --fail-with-body "$infer" -d '{"inputs": [{"name": "X", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}]}')
echo "$answer"
case $answer in
*'"data":[2.0,4.0,6.0]'*) ;;
*) exit 1 ;;
esac

# The JSON part says how many bytes follow it; here they are 1, 2 and 3 as little-endian FP32.
header='{"inputs":[{"name":"X","datatype":"FP32","shape":[3],"parameters":{"binary_data_size":12}}]}'
{ printf %s "$header" && printf '\000\000\200\077\000\000\000\100\000\000\100\100'; } |
    curl -sS --fail-with-body "$infer" --data-binary @- -H "Inference-Header-Content-Length: ${#header}" |
    grep -q '"data":\[2.0,4.0,6.0\]'

echo "PASS: clients"
