"""The chains of the suite `agent`, one file for each."""

from stridelm.bench.suites.chains import order, repair, trip

CHAINS = (order.CHAIN, trip.CHAIN, repair.CHAIN)
