"""One module per failure scenario: `run(target)` runs it on the server under test and returns rows of the table."""
