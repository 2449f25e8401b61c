#!/bin/sh
# Makes the passwords that docker-compose.yml reads, and the addresses that hold them, below ./secrets:
#   sh ops/secrets.sh [--broker redis|rabbitmq] [DIRECTORY]
# Passwords that are there are kept, and so is the broker; what is made of them is written anew. Nothing is printed but
# names.
set -eu
LC_ALL=C
export LC_ALL

die() {
    echo "secrets: $*" >&2
    exit 2
}

broker=
folder=
while [ $# -gt 0 ]; do
    case $1 in
    --broker)
        [ $# -gt 1 ] || die "--broker takes redis or rabbitmq"
        broker=$2
        shift
        ;;
    -*) die "$1 is not an option; see the head of $0" ;;
    *)
        [ -z "$folder" ] || die "one directory, not two"
        folder=$1
        ;;
    esac
    shift
done
case $broker in '' | redis | rabbitmq) ;; *) die "the broker is redis or rabbitmq, not $broker" ;; esac
[ -n "$folder" ] || folder=$(dirname "$0")/../secrets

# Only the owner gets into the folder. The files are open to all, because Compose hands them to the services with
# the owner they have on the host, and each service runs as a user of its own.
umask 022
mkdir -p "$folder"
chmod 0700 "$folder"
cd "$folder"

put() {
    cat >".$1.new"
    chmod 0444 ".$1.new"
    mv -f ".$1.new" "$1"
}

# 192 bits as hexadecimal digits: they need no quoting in a URL or a file.
password() {
    [ -s "$1" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' | put "$1"
    cat "$1"
}

# The same, for one that goes into an address: of your own, too, it may hold only what nothing there reads as a sign.
plain() {
    word=$(password "$1")
    case $word in *[!A-Za-z0-9._~-]*) die "$1 may hold letters, digits and . _ ~ - only: it goes into addresses" ;; esac
    printf %s "$word"
}

postgres=$(plain postgres_password)
redis=$(plain redis_password)
rabbitmq=$(plain rabbitmq_password)
bucket=$(plain s3_password)
flower=$(password flower_password)
password grafana_password >/dev/null
if [ -z "$broker" ]; then
    case $(cat broker_url 2>/dev/null) in amqp*) broker=rabbitmq ;; *) broker=redis ;; esac
fi

printf 'postgresql+psycopg://dlpipe:%s@postgres:5432/dlpipe' "$postgres" | put database_url
printf 'redis://dlpipe:%s@redis:6379/1' "$redis" | put redis_url
case $broker in
redis) printf 'redis://dlpipe:%s@redis:6379/0' "$redis" | put broker_url ;;
rabbitmq) printf 'amqp://dlpipe:%s@rabbitmq:5672//' "$rabbitmq" | put broker_url ;;
esac

# Who is not dlpipe may do nothing, and dlpipe nothing that concerns the server itself.
hash=$(printf %s "$redis" | sha256sum | cut -d ' ' -f 1)
printf 'user default off\nuser dlpipe on #%s ~* &* +@all -@admin -@dangerous +info\n' "$hash" | put redis.acl

put rabbitmq.conf <<END
default_user = dlpipe
default_pass = $rabbitmq
default_user_tags.administrator = false
listeners.tcp.default = 5672
END

# For the S3 server of the Compose file. Keys of a cloud's bucket, written here instead, are kept.
printf '{"identities": [{"name": "dlpipe", "credentials": [{"accessKey": "dlpipe", "secretKey": "%s"}],' "$bucket" >.s3.json
printf ' "actions": ["Admin", "Read", "Write", "List"]}]}\n' >>.s3.json
put s3.json <.s3.json
rm -f .s3.json
[ -s store_credentials ] && ! grep -q '^access_key_id = "dlpipe"$' store_credentials ||
    printf 'access_key_id = "dlpipe"\nsecret_access_key = "%s"\n' "$bucket" | put store_credentials

# One USER:PASSWORD a line; lines of your own are kept.
{
    [ ! -e flower_users ] || grep -v '^dlpipe:' flower_users || true
    printf 'dlpipe:%s\n' "$flower"
} | put flower_users

echo "secrets: in $PWD, for $broker as the broker. Flower: user dlpipe, password in flower_password. Grafana: admin, grafana_password."
