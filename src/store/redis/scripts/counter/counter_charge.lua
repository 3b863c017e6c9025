-- Charges the current tick, in checks and drains. It follows `counter.lua` or `counter_drain.lua`.
--
-- Another program may have set no TTL, or a shorter one.
if charged > 0 then
  local place = here
  -- ahead
  place = here + (now % tick + span - (now + span) % tick) / tick
  kept = kept + (place - here) * tick
  -- end ahead
  add(place, charged)
  local rest = found[place + 2] and redis.call('PTTL', KEYS[skipped + place]) or -1
  if rest * 1000 < kept - 1000000 - now % tick then
    redis.call('PEXPIRE', KEYS[skipped + place], text_of('%.0f', kept / 1000))
  end
end
