#!/usr/bin/env bash
# Calls a node of Tollgate with curl and prints its answer.
#
#   examples/curl.sh check POLICY KEY [COST [ID]]
#   examples/curl.sh batch POLICY KEY...
#   examples/curl.sh usage POLICY KEY
#   examples/curl.sh refund POLICY KEY ID
#
# It exits 0, or 1 for a denied check, or 2 if the call failed.
#
# Variables: TOLLGATE_URL     the node (http://127.0.0.1:7070)
#            TOLLGATE_TOKEN   a check token, if the node needs one
set -euo pipefail

main() {
    case "${1:-} $#" in
        "check "[345]) check "${@:2}" ;;
        "batch 1" | "batch 2") usage ;;
        "batch "*) batch "${@:2}" ;;
        "usage 3") call /v1/usage --get --data-urlencode "policy=$2" --data-urlencode "key=$3" ;;
        "refund 4") post /v1/refund "$(members "$2" "$3"),\"id\":$(json "$4")}" ;;
        *) usage ;;
    esac
}

usage() { sed -n '4,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }

check() {
    local body answer
    body="$(members "$1" "$2"),\"cost\":${3:-1}"
    # An id makes a retry safe: the node charges it once.
    [[ -z ${4:-} ]] || body+=",\"id\":$(json "$4")"
    answer=$(post /v1/check "$body}") || { printf '%s\n' "$answer"; exit 2; }
    printf '%s\n' "$answer"
    [[ $answer == '{"allowed":true,'* ]]
}

batch() {
    local policy=$1 checks="" key
    for key in "${@:2}"; do checks+=",$(members "$policy" "$key")}"; done
    post /v1/check/batch "{\"checks\":[${checks:1}]}"
}

# The first members of a body, without its closing brace.
members() { printf '{"policy":%s,"key":%s' "$(json "$1")" "$(json "$2")"; }

json() {
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

post() { call "$1" -H 'Content-Type: application/json' --data-binary "$2"; }

# curl reads the token from a pipe, so that no other user sees it among the processes.
call() {
    local url=${TOLLGATE_URL:-http://127.0.0.1:7070}$1
    curl --silent --show-error --fail-with-body --max-time 5 --write-out '\n' -H @<(token) "${@:2}" "$url" || exit 2
}

token() { [[ -z ${TOLLGATE_TOKEN:-} ]] || printf 'Authorization: Bearer %s\n' "$TOLLGATE_TOKEN"; }

main "$@"
