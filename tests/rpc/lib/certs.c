/* Made by make_certs.sh. */
#include "tests/rpc/lib/certs.h"

const char cert_right_ca[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBfTCCASOgAwIBAgIUDOKa2rLrPANXYeZnxMWQyqabnx0wCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MTExOTAxWhgPMjEyNjEwMjUx\n"
    "MTE5MDFaMBMxETAPBgNVBAMMCHJpZ2h0X2NhMFkwEwYHKoZIzj0CAQYIKoZIzj0D\n"
    "AQcDQgAEHsw2KZHdzrEBuf72SikoHsg4QGC4jEVJrKjIos3WVjupECqd7nrVqCSF\n"
    "0+0s/eNXQo7+4TynOJp4KLGr4GqT3qNTMFEwHQYDVR0OBBYEFKj1ZD9FivzzdiQ8\n"
    "1hG8/2ximckDMB8GA1UdIwQYMBaAFKj1ZD9FivzzdiQ81hG8/2ximckDMA8GA1Ud\n"
    "EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgHeBvdUlu0/oqSOqfl5rBzSkO\n"
    "kBwqbvxnjOB57M7jSzwCIQDEVHvjb7Llb0CgMi/oHB7WU9k7Nm4dUwa0jCIidoh6\n"
    "fA==\n"
    "-----END CERTIFICATE-----\n";

const char cert_wrong_ca[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBfTCCASOgAwIBAgIUaY2609xXZdZT4DskZw0FdCcM/fIwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwId3JvbmdfY2EwIBcNMjYxMTE4MTExOTAxWhgPMjEyNjEwMjUx\n"
    "MTE5MDFaMBMxETAPBgNVBAMMCHdyb25nX2NhMFkwEwYHKoZIzj0CAQYIKoZIzj0D\n"
    "AQcDQgAEZHL6I5EdVP6rQA06P/sk0QultB79C+cmQvAv6rKXgEkVk6GD0EZ60u13\n"
    "dQ0nunhjjNfqrdoHbgT0DAIyXK1d/KNTMFEwHQYDVR0OBBYEFF0JG9kPCIixdiW/\n"
    "+i3j7MWgRytdMB8GA1UdIwQYMBaAFF0JG9kPCIixdiW/+i3j7MWgRytdMA8GA1Ud\n"
    "EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhANCZ7JOReREdAzeQWE4AIILt\n"
    "Z2Ur5sfrLtpNculyk9qRAiAK6hEOZzbuz5Fl39lxLG1AvdH6mQmBWAjBuelw2RC5\n"
    "SQ==\n"
    "-----END CERTIFICATE-----\n";

const char cert_alpha[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBjDCCATKgAwIBAgIUEkhkx9+pGoPfkfFbWUyrL0995V0wCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MTExOTAxWhgPMjEyNjEwMjUx\n"
    "MTE5MDFaMBAxDjAMBgNVBAMMBWFscGhhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\n"
    "QgAEZtegfxzYGZ4Q5+0+aARuH3sOK5bkoQVkJ2lZQNtgYaLjcb0uyUpCKUYom8xv\n"
    "Im/Yp0ODaYciYkYx+UtfRvAM26NlMGMwIQYDVR0RBBowGIIFYWxwaGGCCWxvY2Fs\n"
    "aG9zdIcEfwAAATAdBgNVHQ4EFgQU3fbMOZkp/EnJJ+ZHobvWssImqRowHwYDVR0j\n"
    "BBgwFoAUqPVkP0WK/PN2JDzWEbz/bGKZyQMwCgYIKoZIzj0EAwIDSAAwRQIhAIsl\n"
    "ofyvb2JaA7MW7uivWNeXBz1sQ7RsUhp6kZeRtaPWAiAEQwhJ3y2hJDmiwVZuWrJc\n"
    "f6MYe3NSWoe+nEjIcwR7pw==\n"
    "-----END CERTIFICATE-----\n";

const char cert_beta[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBiDCCAS2gAwIBAgIUEkhkx9+pGoPfkfFbWUyrL0995V4wCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MTExOTAyWhgPMjEyNjEwMjUx\n"
    "MTE5MDJaMA8xDTALBgNVBAMMBGJldGEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n"
    "AARnbbpUmjvdE8QwTEcO2bZNdC3voJbAZNr1ntrAFwCBMjVdCm4K9pqXO4PehOqQ\n"
    "9b3kAYDHNlnbIE8/00mEggaSo2EwXzAdBgNVHREEFjAUggRiZXRhggxiZXRhLmV4\n"
    "YW1wbGUwHQYDVR0OBBYEFKwQSSMha/fM5sbvMlTg8qumH/8wMB8GA1UdIwQYMBaA\n"
    "FKj1ZD9FivzzdiQ81hG8/2ximckDMAoGCCqGSM49BAMCA0kAMEYCIQD2sqNodTGl\n"
    "oqmoWDntvEkfSnODO5XL0Hen433pa/3i/QIhAJGiVl6tShN4VeAOQsAiSuHXicHL\n"
    "yMebiBj6ZNJOxPAo\n"
    "-----END CERTIFICATE-----\n";

const char cert_gamma[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBgTCCASegAwIBAgIUBx07hdCV4RWO9h4f5wgAsCtrsG0wCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwId3JvbmdfY2EwIBcNMjYxMTE4MTExOTAyWhgPMjEyNjEwMjUx\n"
    "MTE5MDJaMBAxDjAMBgNVBAMMBWdhbW1hMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\n"
    "QgAEa4cBTL5MGvppakO40t++NCYzwbw1YlZuxNH64An04fowQ4d4nQ+NXMGHBJDA\n"
    "RFMxaPG+0OdKfQaHo8sSlkhX/qNaMFgwFgYDVR0RBA8wDYIFZ2FtbWGHBH8AAAEw\n"
    "HQYDVR0OBBYEFMRwYB7PAAeQywcXckRoKwD90tb5MB8GA1UdIwQYMBaAFF0JG9kP\n"
    "CIixdiW/+i3j7MWgRytdMAoGCCqGSM49BAMCA0gAMEUCIGbV8z95MDz5RrWFnl9D\n"
    "bmWzooMRZovyc8vAnrWJi6HfAiEAp2nLPb0rhr7M5ipFlYZiiClB9j3xHAnHcVg8\n"
    "9VK8ac8=\n"
    "-----END CERTIFICATE-----\n";

const char cert_delta[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBgDCCASegAwIBAgIUEkhkx9+pGoPfkfFbWUyrL0995V8wCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MTExOTAyWhgPMjEyNjEwMjUx\n"
    "MTE5MDJaMBAxDjAMBgNVBAMMBWRlbHRhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\n"
    "QgAEtJyi6jwv1+tA3HSJmd0H5MCpQ2e5mL35EM04ix85qWvqtyG09hG2SdiH+S+d\n"
    "rIw2x89pA2kx2dVxp4TF69q5XaNaMFgwFgYDVR0RBA8wDYIFZGVsdGGHBH8AAAEw\n"
    "HQYDVR0OBBYEFPA76G0gLdgXGsAVBlOIwwqN3fNeMB8GA1UdIwQYMBaAFKj1ZD9F\n"
    "ivzzdiQ81hG8/2ximckDMAoGCCqGSM49BAMCA0cAMEQCIGCSDsUpN8hyipeQOf1t\n"
    "o+OYquN3/swmrH0+xV/TQMi+AiA+gScjTwYfaq1vdZ09lXisqgWvLBjsDizU5FXi\n"
    "DtBTtg==\n"
    "-----END CERTIFICATE-----\n";

const char cert_zeta[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBlTCCATqgAwIBAgIUEkhkx9+pGoPfkfFbWUyrL0995WAwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MTExOTAyWhgPMjEyNjEwMjUx\n"
    "MTE5MDJaMA8xDTALBgNVBAMMBHpldGEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n"
    "AAR7Hk3GZmkBU6yZqr5l7RKtTrAlTPwEzgRngUrAn0dbDYppXlIWliCgnPJ1aog4\n"
    "cQUA4GD9zsKxXIKTGaVNkbiNo24wbDAqBgNVHREEIzAhgg1vdGhlci5leGFtcGxl\n"
    "hwR/AAABgQR6ZXRhhgR6ZXRhMB0GA1UdDgQWBBQpMAQ4PEmOMUmTgL8FzcQ04Yo/\n"
    "KzAfBgNVHSMEGDAWgBSo9WQ/RYr883YkPNYRvP9sYpnJAzAKBggqhkjOPQQDAgNJ\n"
    "ADBGAiEAiuxta9QC/kUihef20vJlFCPm+9MkNREefUARqdihmJgCIQCYA8raKLsB\n"
    "msIbQ8wwNG5WwhyuetsdTIkmav8Y5eBr4A==\n"
    "-----END CERTIFICATE-----\n";

const char cert_expired[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBgjCCASmgAwIBAgIUEkhkx9+pGoPfkfFbWUyrL0995WEwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwHhcNMjYxMTE4MTExOTAyWhcNMjYxMTE3MTEx\n"
    "OTAyWjASMRAwDgYDVQQDDAdleHBpcmVkMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\n"
    "QgAEqlz+jvM27m6m2eGXySZPD1wN68qbiKTgDpvNsCh1FksD6A8aTJhiHbCwcQM/\n"
    "Y2OPqnaeZHkfkykAtmOe/FY9y6NcMFowGAYDVR0RBBEwD4IHZXhwaXJlZIcEfwAA\n"
    "ATAdBgNVHQ4EFgQUKbjMtr9smPNH85/HIPMrnBNTu7QwHwYDVR0jBBgwFoAUqPVk\n"
    "P0WK/PN2JDzWEbz/bGKZyQMwCgYIKoZIzj0EAwIDRwAwRAIgdz6vZBkVjn+l562x\n"
    "8yFd83fIzs5+RSH5qBixOh7k1ogCIBj7rnjjSsuldM2H0VuSVD3t9yRIZMz0Ef47\n"
    "O+tCaa1A\n"
    "-----END CERTIFICATE-----\n";

const char cert_many[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIHUzCCBvqgAwIBAgIUEkhkx9+pGoPfkfFbWUyrL0995WIwCgYIKoZIzj0EAwIw\n"
    "EzERMA8GA1UEAwwIcmlnaHRfY2EwIBcNMjYxMTE4MTExOTAyWhgPMjEyNjEwMjUx\n"
    "MTE5MDJaMA8xDTALBgNVBAMMBG1hbnkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n"
    "AASj7EJhbvF+WMe8qcPZVKFQhBcGf3+zr0G6/AnLPJJrmLkewVfdTI+BYOVHe9qJ\n"
    "l5eXpabc6UjQjYlBrkLbMC3Yo4IGLDCCBigwggXkBgNVHREEggXbMIIF14IJbG9j\n"
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
    "Z2EwHQYDVR0OBBYEFA6tad2XSF2cBEJrZtGosdUeGP9bMB8GA1UdIwQYMBaAFKj1\n"
    "ZD9FivzzdiQ81hG8/2ximckDMAoGCCqGSM49BAMCA0cAMEQCIH/sYjGKAn1z9ZeP\n"
    "Rnnt9by+7XowvncpvXIlfEk3KabAAiBm8v9G+zeU/7c6XjkCgQI4A3rBoRUPHHR9\n"
    "ONZVQIxiLw==\n"
    "-----END CERTIFICATE-----\n";

const char key_alpha[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgS1druMKemxhVi08v\n"
    "drTcH/ZHKp92yC//B84YQ5BqgKyhRANCAARm16B/HNgZnhDn7T5oBG4few4rluSh\n"
    "BWQnaVlA22BhouNxvS7JSkIpRiibzG8ib9inQ4NphyJiRjH5S19G8Azb\n"
    "-----END PRIVATE KEY-----\n";

const char key_beta[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgHRym/697t5hB6ztg\n"
    "KxBi16WdYSE2pzhEKALoMcJaEtKhRANCAARnbbpUmjvdE8QwTEcO2bZNdC3voJbA\n"
    "ZNr1ntrAFwCBMjVdCm4K9pqXO4PehOqQ9b3kAYDHNlnbIE8/00mEggaS\n"
    "-----END PRIVATE KEY-----\n";

const char key_gamma[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgCzW3zK9KywX3Ijuc\n"
    "o2h0M7xYN2/E/RnUqsRTYtcUL86hRANCAARrhwFMvkwa+mlqQ7jS3740JjPBvDVi\n"
    "Vm7E0frgCfTh+jBDh3idD41cwYcEkMBEUzFo8b7Q50p9BoejyxKWSFf+\n"
    "-----END PRIVATE KEY-----\n";

const char key_delta[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgFxBF4oTNR9V4kcRS\n"
    "fOhA73ZPDVQWjt9azdIMnvPMcZ6hRANCAAS0nKLqPC/X60DcdImZ3QfkwKlDZ7mY\n"
    "vfkQzTiLHzmpa+q3IbT2EbZJ2If5L52sjDbHz2kDaTHZ1XGnhMXr2rld\n"
    "-----END PRIVATE KEY-----\n";

const char key_zeta[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgdsECJPQrlMsSszKM\n"
    "RQobypgvrWSmTZkyd5xhTyxUqKmhRANCAAR7Hk3GZmkBU6yZqr5l7RKtTrAlTPwE\n"
    "zgRngUrAn0dbDYppXlIWliCgnPJ1aog4cQUA4GD9zsKxXIKTGaVNkbiN\n"
    "-----END PRIVATE KEY-----\n";

const char key_expired[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgBD4e0wodrGDtORMv\n"
    "LATPgIznMLhZPa1NEdoq2S9ZEO+hRANCAASqXP6O8zbubqbZ4ZfJJk8PXA3rypuI\n"
    "pOAOm82wKHUWSwPoDxpMmGIdsLBxAz9jY4+qdp5keR+TKQC2Y578Vj3L\n"
    "-----END PRIVATE KEY-----\n";

const char key_many[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgeNw3Hhe5z6AjRcVV\n"
    "/O5spng1GXVHFSjTgUA9VsP1pE6hRANCAASj7EJhbvF+WMe8qcPZVKFQhBcGf3+z\n"
    "r0G6/AnLPJJrmLkewVfdTI+BYOVHe9qJl5eXpabc6UjQjYlBrkLbMC3Y\n"
    "-----END PRIVATE KEY-----\n";
