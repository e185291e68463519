#!/bin/sh
# mtls_certs.sh FOLDER: makes the certificates of mtls.c, valid for a day.
#
# A worker's certificate has the worker's name and the host that others dial. With a CA in ca_file, the
# connecting worker must have a certificate with its name, and the other one with its address.
set -eu
mkdir -p "$1"
cd "$1"

authority() { # name
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj "/CN=$1" \
        -keyout "$1.key" -out "$1.pem" 2>/dev/null
}

certificate() { # authority name
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" \
        -keyout "$2.key" -out "$2.csr" 2>/dev/null
    printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\n' "$2" >"$2.ext"
    openssl x509 -req -in "$2.csr" -CA "$1.pem" -CAkey "$1.key" -CAcreateserial -days 1 \
        -extfile "$2.ext" -out "$2.pem" 2>/dev/null
    rm "$2.csr" "$2.ext"
}

umask 077 # keys are for this user only
authority ca
certificate ca worker0
certificate ca worker1
authority stranger
certificate stranger visitor
rm ca.key stranger.key
