"""Words to watts: a benchmark of servers, and its predictions beside what was measured."""
