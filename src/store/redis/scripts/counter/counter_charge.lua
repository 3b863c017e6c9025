-- Charges the current tick, in checks and drains. It follows `counter.lua` or `counter_drain.lua`.
--
-- Another program may have set no TTL, or a shorter one.
if charged > 0 then
  add(here, charged)
  local rest = found[here + 2] and redis.call('PTTL', KEYS[skipped + here]) or -1
  if rest * 1000 < kept - 1000000 - now % tick then
    redis.call('PEXPIRE', KEYS[skipped + here], text_of('%.0f', kept / 1000))
  end
end
