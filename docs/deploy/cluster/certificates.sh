#!/bin/sh
# Makes an authority, a certificate for each node of NATS, and one for the brokers:
#   certificates.sh DIRECTORY NODE...
# A NODE is the name by which others reach it. Files that exist are kept. The directory is for its
# owner only; the files are not, as processes in containers with other users read them.
set -eu
directory=${1:?usage: certificates.sh DIRECTORY NODE...}
shift
umask 022
mkdir -p "$directory"
chmod 700 "$directory"
cd "$directory"

# key NAME SUBJECT OPTION...: a key, and a certificate of it.
key() {
    [ -e "$1.key" ] && return
    name=$1
    subject=$2
    shift 2
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 3650 \
        -subj "$subject" -keyout "$name.key.new" -out "$name.pem" "$@" 2>/dev/null
    [ "$name" = ca ] || chmod 644 "$name.key.new"
    mv "$name.key.new" "$name.key"
}

# issue NAME NAMES USAGE: the same, of the authority.
issue() {
    key "$1" "/CN=$1" -CA ca.pem -CAkey ca.key -addext "subjectAltName=$2" \
        -addext "extendedKeyUsage=$3" -addext "basicConstraints=critical,CA:FALSE"
}

key ca "/CN=pubsub backplane" -addext "keyUsage=critical,keyCertSign"
for node; do
    issue "$node" "DNS:$node,DNS:localhost" serverAuth,clientAuth
done
# The name is the user in nats.conf.
issue broker DNS:broker.pubsub clientAuth
