# What the Cap'n Proto peer serves.
@0xc4b1a7a60f0d5e21;

interface Object {
    get @0 () -> (value :Data);
}

interface Bench {
    echo @0 (data :Data) -> (data :Data);
    make @1 () -> (object :Object);
    made @2 () -> (n :UInt64);  # how many objects were made so far
}
