if charged > 0 then
  keep()
end
