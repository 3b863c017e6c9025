if charged > 0 then
  for q = 1, quotas do
    mark(q, now + hold)
  end
  keep()
end
return reply
