-- A reservation: a check that marks its states. Until the mark ends, its charge may be undone. It
-- reads these arguments from the end:
--
-- KEYS  ..., the instant of the last reset. An undo needs it. Where a moving slot would prevent an
--       undo, this key also prevents the reservation.
-- ARGV  ..., duration of the mark, us.

local hold = tonumber(table.remove(ARGV))
table.remove(KEYS)

