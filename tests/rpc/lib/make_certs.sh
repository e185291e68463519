#!/bin/sh
# Makes the certificates that the TLS tests use, as C strings: ./make_certs.sh > certs.c
# They are good for a hundred years (but for "expired"), and for nothing but tests: the keys are public.
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cd "$folder"

ca() { # name
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -sha256 \
        -subj "/CN=$1" -keyout "$1.key" -out "$1.pem" 2>/dev/null
}

signed_by() { # ca name alternative-names [days]
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -subj "/CN=$2" \
        -keyout "$2.key" -out "$2.csr" 2>/dev/null
    printf 'subjectAltName=%s\n' "$3" >"$2.ext"
    openssl x509 -req -in "$2.csr" -CA "$1.pem" -CAkey "$1.key" -CAcreateserial -days "${4:-36500}" \
        -sha256 -extfile "$2.ext" -out "$2.pem" 2>/dev/null
}

string() { # file symbol
    printf '\nconst char %s[] =\n' "$2"
    sed 's/.*/    "&\\n"/; $s/$/;/' "$1"
}

ca right_ca
ca wrong_ca
signed_by right_ca alpha "DNS:alpha,DNS:localhost,IP:127.0.0.1"
signed_by right_ca beta "DNS:beta,DNS:beta.example"
signed_by right_ca delta "DNS:delta,IP:127.0.0.1"
signed_by wrong_ca gamma "DNS:gamma,IP:127.0.0.1"
signed_by right_ca zeta "DNS:other.example,IP:127.0.0.1,email:zeta,URI:zeta"
signed_by right_ca expired "DNS:expired,IP:127.0.0.1" -1
many=DNS:localhost,IP:127.0.0.1
for i in $(seq 40); do
    many=$many,DNS:one-of-many-names-number-$i.example
done
signed_by right_ca many "$many,DNS:omega"

echo '/* Made by make_certs.sh. */'
echo '#include "tests/rpc/lib/certs.h"'
for name in right_ca wrong_ca alpha beta gamma delta zeta expired many; do
    string $name.pem cert_$name
done
for name in alpha beta gamma delta zeta expired many; do
    string $name.key key_$name
done
