/* Made by make_certs.sh. */
#include "tests/rpc/certs.h"

const char cert_right_ca[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBfTCCASOgAwIBAgIUH4p7qgAYExYjnP3Yg4bft0ajPfgwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MDEzNTMzWhgPMjEyNjEwMjUw\n"
    "MTM1MzNaMBMxETAPBgNVBAMMCHJpZ2h0X2NhMFkwEwYHKoZIzj0CAQYIKoZIzj0D\n"
    "AQcDQgAE/JI9+YuLQ8JwoYTDb3lr8DqG9Im+QVF1qwX10P+Syf7F9fVdzNpqcEuz\n"
    "4o/gplmzBfBFAUe/5N5+7JOt4RNgEaNTMFEwHQYDVR0OBBYEFL9uOQlYnGdsCHNa\n"
    "3yH+33vx4NzfMB8GA1UdIwQYMBaAFL9uOQlYnGdsCHNa3yH+33vx4NzfMA8GA1Ud\n"
    "EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAKp1cbAmoxxu0oVGrV53Svbi\n"
    "pnHmje2Bp4H+dxb7crsDAiAxHJWBO5h9xI1c1Fwxd36ojTwDWO0Qj26PqpDGCSW/\n"
    "6g==\n"
    "-----END CERTIFICATE-----\n";

const char cert_wrong_ca[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBfjCCASOgAwIBAgIUMnfdnyYAusvniUJ9J+ZekSs3q+gwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwId3JvbmdfY2EwIBcNMjYxMTE4MDEzNTMzWhgPMjEyNjEwMjUw\n"
    "MTM1MzNaMBMxETAPBgNVBAMMCHdyb25nX2NhMFkwEwYHKoZIzj0CAQYIKoZIzj0D\n"
    "AQcDQgAEKRYpMtpUwZmIomk7K33I+fnb+X1JAjBZA4GyEHHHEGIgNMCOXe5Qx0pZ\n"
    "rseXXXMWjHw3R/S2IzW6UxyF5r0saKNTMFEwHQYDVR0OBBYEFF3QdX06nNTYA+UQ\n"
    "sUL1vaIyPztDMB8GA1UdIwQYMBaAFF3QdX06nNTYA+UQsUL1vaIyPztDMA8GA1Ud\n"
    "EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhAJmn0VL9TruyRxfyiWq0TWCM\n"
    "SlHEogiYFhNxX9U4Pa6fAiEAv8c0xn5ZsPSXKzLBhIYfxnLqVoTEVjIosEcIxONH\n"
    "Kmg=\n"
    "-----END CERTIFICATE-----\n";

const char cert_alpha[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBjDCCATKgAwIBAgIUFLZ463yNaBRhkJsQUkSfGgMPx8UwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MDEzNTMzWhgPMjEyNjEwMjUw\n"
    "MTM1MzNaMBAxDjAMBgNVBAMMBWFscGhhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\n"
    "QgAE4FjyEscbJVmqlqZ52eyyNhAiitgLfWkY4C0PDZDCmWNrHhAdXBPyczdU0khv\n"
    "FIyMw/lK7ADEYxmul6UOZvmUGaNlMGMwIQYDVR0RBBowGIIFYWxwaGGCCWxvY2Fs\n"
    "aG9zdIcEfwAAATAdBgNVHQ4EFgQUZay9bDB3RZZbqYug7zkWULIDrqMwHwYDVR0j\n"
    "BBgwFoAUv245CVicZ2wIc1rfIf7fe/Hg3N8wCgYIKoZIzj0EAwIDSAAwRQIgYl5Y\n"
    "/wZKt3/5oCA8P8NGUNMtlUZt7DqKB3b/f4JsCEcCIQDG2vl2modT8bHpMzKPny/b\n"
    "b1Nj+9YgVBWtYboJUR2Omw==\n"
    "-----END CERTIFICATE-----\n";

const char cert_beta[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBhzCCAS2gAwIBAgIUFLZ463yNaBRhkJsQUkSfGgMPx8YwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MDEzNTMzWhgPMjEyNjEwMjUw\n"
    "MTM1MzNaMA8xDTALBgNVBAMMBGJldGEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n"
    "AASH/5HgqPxUprFPOmBevpuJ5nipFjC8picFQY1yR7kCPYDzxjL9zc3Wln2wLWI9\n"
    "kbIuUYaLXusY3/BvOrKlO7G7o2EwXzAdBgNVHREEFjAUggRiZXRhggxiZXRhLmV4\n"
    "YW1wbGUwHQYDVR0OBBYEFFeWc/fX7kLaZ4nwaO+DR/kRL8vvMB8GA1UdIwQYMBaA\n"
    "FL9uOQlYnGdsCHNa3yH+33vx4NzfMAoGCCqGSM49BAMCA0gAMEUCICoP09xfv/IO\n"
    "2h81Em5WJin1zCdoDdYEYYVVrjStqdnpAiEA5NwBdxRXu7sMOY3ajicyUHlhvCxG\n"
    "KFDtdUxWZf8QyiE=\n"
    "-----END CERTIFICATE-----\n";

const char cert_gamma[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBgTCCASegAwIBAgIUOc5pz/AqiuDMhzleDKGLrrfC4o4wCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwId3JvbmdfY2EwIBcNMjYxMTE4MDEzNTMzWhgPMjEyNjEwMjUw\n"
    "MTM1MzNaMBAxDjAMBgNVBAMMBWdhbW1hMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\n"
    "QgAEzNhp/aW5NP3OaSnXewZvx4szhXquxSCHs+fEUlBN85FwNPuBx4bY/4gFNasQ\n"
    "mTJ0OBx7yddDhS/B09b5D8BR6KNaMFgwFgYDVR0RBA8wDYIFZ2FtbWGHBH8AAAEw\n"
    "HQYDVR0OBBYEFCtl754pUOmtS45R8HxtLRQQGMWiMB8GA1UdIwQYMBaAFF3QdX06\n"
    "nNTYA+UQsUL1vaIyPztDMAoGCCqGSM49BAMCA0gAMEUCIQDoSWCASXhP++lk6euC\n"
    "3NjAxS2VJg93toQ6FM1b0GBDWwIgVKtZtvq5VV6CHO7wb7oMWlnZS7fiV8hVeneo\n"
    "q1BtATM=\n"
    "-----END CERTIFICATE-----\n";

const char cert_delta[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBgTCCASegAwIBAgIUFLZ463yNaBRhkJsQUkSfGgMPx8cwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MDEzNTMzWhgPMjEyNjEwMjUw\n"
    "MTM1MzNaMBAxDjAMBgNVBAMMBWRlbHRhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\n"
    "QgAEfgogvI3HUpRDMJOrtfjT4iBCXSm8PjlJjAeBL2ibAgdr/hYmvk5Bk8S2jaUD\n"
    "tumNhA0XxDlSzg39Prpi3DhEx6NaMFgwFgYDVR0RBA8wDYIFZGVsdGGHBH8AAAEw\n"
    "HQYDVR0OBBYEFEpONO9W2MX4asztVHQVmS8ty3PdMB8GA1UdIwQYMBaAFL9uOQlY\n"
    "nGdsCHNa3yH+33vx4NzfMAoGCCqGSM49BAMCA0gAMEUCIQDxzvsbR4B1+2mOMabK\n"
    "hPSzdYBMKvuuls8mJlGZV/yqTAIgPOOBvSPsgM1fgNksByNw+Up7vRM/atA978AS\n"
    "KpGSZwM=\n"
    "-----END CERTIFICATE-----\n";

const char cert_zeta[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBlDCCATqgAwIBAgIUFLZ463yNaBRhkJsQUkSfGgMPx8gwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MDEzNTMzWhgPMjEyNjEwMjUw\n"
    "MTM1MzNaMA8xDTALBgNVBAMMBHpldGEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n"
    "AARgW1jWK0bgcYWBDcpYyYhfqGelat7TZ5Xb0OhgOIG4BK4rqdb22gwgDVbisVcS\n"
    "UTpxU/2l50kgk0vn71iqXI2To24wbDAqBgNVHREEIzAhgg1vdGhlci5leGFtcGxl\n"
    "hwR/AAABgQR6ZXRhhgR6ZXRhMB0GA1UdDgQWBBSnGwDqp+kdsw5ol6dS1aliP5Gc\n"
    "gDAfBgNVHSMEGDAWgBS/bjkJWJxnbAhzWt8h/t978eDc3zAKBggqhkjOPQQDAgNI\n"
    "ADBFAiEAzZq4P4dB21mnB9maXZdsD46KkkxxQErc7tGtapB6tMYCIDvQS6btkRQV\n"
    "/LqvQpsSfk0ZXAoM/Ohr6vhd7w8crlYB\n"
    "-----END CERTIFICATE-----\n";

const char cert_many[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIHVDCCBvqgAwIBAgIUFLZ463yNaBRhkJsQUkSfGgMPx8kwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MDEzNTMzWhgPMjEyNjEwMjUw\n"
    "MTM1MzNaMA8xDTALBgNVBAMMBG1hbnkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n"
    "AASYX8O/sCx9+xYauEdlVwNHJnXmTr3r7Ak7xzKPJHygTxHyxige2SUhOky06k+X\n"
    "Ea+xcpz58QdGMqM+4q98JfBJo4IGLDCCBigwggXkBgNVHREEggXbMIIF14IJbG9j\n"
    "YWxob3N0hwR/AAABgiJvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItMS5leGFtcGxl\n"
    "giJvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItMi5leGFtcGxlgiJvbmUtb2YtbWFu\n"
    "eS1uYW1lcy1udW1iZXItMy5leGFtcGxlgiJvbmUtb2YtbWFueS1uYW1lcy1udW1i\n"
    "ZXItNC5leGFtcGxlgiJvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItNS5leGFtcGxl\n"
    "giJvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItNi5leGFtcGxlgiJvbmUtb2YtbWFu\n"
    "eS1uYW1lcy1udW1iZXItNy5leGFtcGxlgiJvbmUtb2YtbWFueS1uYW1lcy1udW1i\n"
    "ZXItOC5leGFtcGxlgiJvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItOS5leGFtcGxl\n"
    "giNvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItMTAuZXhhbXBsZYIjb25lLW9mLW1h\n"
    "bnktbmFtZXMtbnVtYmVyLTExLmV4YW1wbGWCI29uZS1vZi1tYW55LW5hbWVzLW51\n"
    "bWJlci0xMi5leGFtcGxlgiNvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItMTMuZXhh\n"
    "bXBsZYIjb25lLW9mLW1hbnktbmFtZXMtbnVtYmVyLTE0LmV4YW1wbGWCI29uZS1v\n"
    "Zi1tYW55LW5hbWVzLW51bWJlci0xNS5leGFtcGxlgiNvbmUtb2YtbWFueS1uYW1l\n"
    "cy1udW1iZXItMTYuZXhhbXBsZYIjb25lLW9mLW1hbnktbmFtZXMtbnVtYmVyLTE3\n"
    "LmV4YW1wbGWCI29uZS1vZi1tYW55LW5hbWVzLW51bWJlci0xOC5leGFtcGxlgiNv\n"
    "bmUtb2YtbWFueS1uYW1lcy1udW1iZXItMTkuZXhhbXBsZYIjb25lLW9mLW1hbnkt\n"
    "bmFtZXMtbnVtYmVyLTIwLmV4YW1wbGWCI29uZS1vZi1tYW55LW5hbWVzLW51bWJl\n"
    "ci0yMS5leGFtcGxlgiNvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItMjIuZXhhbXBs\n"
    "ZYIjb25lLW9mLW1hbnktbmFtZXMtbnVtYmVyLTIzLmV4YW1wbGWCI29uZS1vZi1t\n"
    "YW55LW5hbWVzLW51bWJlci0yNC5leGFtcGxlgiNvbmUtb2YtbWFueS1uYW1lcy1u\n"
    "dW1iZXItMjUuZXhhbXBsZYIjb25lLW9mLW1hbnktbmFtZXMtbnVtYmVyLTI2LmV4\n"
    "YW1wbGWCI29uZS1vZi1tYW55LW5hbWVzLW51bWJlci0yNy5leGFtcGxlgiNvbmUt\n"
    "b2YtbWFueS1uYW1lcy1udW1iZXItMjguZXhhbXBsZYIjb25lLW9mLW1hbnktbmFt\n"
    "ZXMtbnVtYmVyLTI5LmV4YW1wbGWCI29uZS1vZi1tYW55LW5hbWVzLW51bWJlci0z\n"
    "MC5leGFtcGxlgiNvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItMzEuZXhhbXBsZYIj\n"
    "b25lLW9mLW1hbnktbmFtZXMtbnVtYmVyLTMyLmV4YW1wbGWCI29uZS1vZi1tYW55\n"
    "LW5hbWVzLW51bWJlci0zMy5leGFtcGxlgiNvbmUtb2YtbWFueS1uYW1lcy1udW1i\n"
    "ZXItMzQuZXhhbXBsZYIjb25lLW9mLW1hbnktbmFtZXMtbnVtYmVyLTM1LmV4YW1w\n"
    "bGWCI29uZS1vZi1tYW55LW5hbWVzLW51bWJlci0zNi5leGFtcGxlgiNvbmUtb2Yt\n"
    "bWFueS1uYW1lcy1udW1iZXItMzcuZXhhbXBsZYIjb25lLW9mLW1hbnktbmFtZXMt\n"
    "bnVtYmVyLTM4LmV4YW1wbGWCI29uZS1vZi1tYW55LW5hbWVzLW51bWJlci0zOS5l\n"
    "eGFtcGxlgiNvbmUtb2YtbWFueS1uYW1lcy1udW1iZXItNDAuZXhhbXBsZYIFb21l\n"
    "Z2EwHQYDVR0OBBYEFH8duBNVmF4vbakNs4r+agUebE+ZMB8GA1UdIwQYMBaAFL9u\n"
    "OQlYnGdsCHNa3yH+33vx4NzfMAoGCCqGSM49BAMCA0gAMEUCIQDrUaeBKQj2W7u6\n"
    "bet4/qVqUxEwE6BuijtDE0Z/j1Sv2wIgNa1qPcUJcwy8qTfZNghvhoz66uylKlxl\n"
    "7kqE9Dkr0qc=\n"
    "-----END CERTIFICATE-----\n";

const char key_alpha[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgBAum8R5/gLrqaZfj\n"
    "3JCUJgYLSqq5j89hlFTS7m4gQyWhRANCAATgWPISxxslWaqWpnnZ7LI2ECKK2At9\n"
    "aRjgLQ8NkMKZY2seEB1cE/JzN1TSSG8UjIzD+UrsAMRjGa6XpQ5m+ZQZ\n"
    "-----END PRIVATE KEY-----\n";

const char key_beta[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgBkK60pDhVTYUjlCM\n"
    "mg3Z4b7JBYLvdHzYaX1RmwQJWyqhRANCAASH/5HgqPxUprFPOmBevpuJ5nipFjC8\n"
    "picFQY1yR7kCPYDzxjL9zc3Wln2wLWI9kbIuUYaLXusY3/BvOrKlO7G7\n"
    "-----END PRIVATE KEY-----\n";

const char key_gamma[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUux8hmW0aXACk5oG\n"
    "oVHfEVCEwgmRcrVYETPAHX7XgQ+hRANCAATM2Gn9pbk0/c5pKdd7Bm/HizOFeq7F\n"
    "IIez58RSUE3zkXA0+4HHhtj/iAU1qxCZMnQ4HHvJ10OFL8HT1vkPwFHo\n"
    "-----END PRIVATE KEY-----\n";

const char key_delta[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgBP/rx+T3dx/l46jG\n"
    "kdEJpl6GAqeBFMb7b4qSrV9GHQKhRANCAAR+CiC8jcdSlEMwk6u1+NPiIEJdKbw+\n"
    "OUmMB4EvaJsCB2v+Fia+TkGTxLaNpQO26Y2EDRfEOVLODf0+umLcOETH\n"
    "-----END PRIVATE KEY-----\n";

const char key_zeta[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgWwflVkvzQB0E7SZ7\n"
    "CtEiY9AiV+UdnxTOVYLMP/T2oSGhRANCAARgW1jWK0bgcYWBDcpYyYhfqGelat7T\n"
    "Z5Xb0OhgOIG4BK4rqdb22gwgDVbisVcSUTpxU/2l50kgk0vn71iqXI2T\n"
    "-----END PRIVATE KEY-----\n";

const char key_many[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgiGyg29slAJejCTLP\n"
    "fpHcMjB9JNJFYGxizaeKdlaarWyhRANCAASYX8O/sCx9+xYauEdlVwNHJnXmTr3r\n"
    "7Ak7xzKPJHygTxHyxige2SUhOky06k+XEa+xcpz58QdGMqM+4q98JfBJ\n"
    "-----END PRIVATE KEY-----\n";
