module sublet.dev/sequence

go 1.22
